"""The table that kube-proxy's nftables mode leaves on a node, as text for ``nft -f``.

    table_text(4, services)                                 the table of Kubernetes 1.37 in one transaction
    for text in pieces(4, services, 500): ...               the same in transactions of 500 Services each
    table_text(6, services, "1.31", Node(pod_range="…"))    the table of Kubernetes 1.31, and what the node adds to it

1.31 has a chain for every endpoint, which marks by a jump what is to be masqueraded. In 1.37 a Service's chain holds an
anonymous map of its endpoints' addresses and ports, or a plain ``dnat`` where there is one endpoint; endpoints have
chains only with session affinity. Hooks, priorities and the chains between differ as well.

Written from the layouts' description, not with nodeproxy's templates: so that one can be held against the other. That
kube-proxy writes the same is shown with tables that it wrote (:mod:`netns.recorded`). Those are small; these can have
any size.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from layouts.services import Endpoint, Family, Node, Service, hashed

Version = Literal["1.31", "1.37"]
TABLE = "kube-proxy"
_COMMENT_LIMIT = 128

# Base chains: name, type, hook, priority. Creation order.
_HOOKS: dict[Version, tuple[tuple[str, str, str, int], ...]] = {
    "1.31": (
        ("filter-prerouting", "filter", "prerouting", -110),
        ("filter-input", "filter", "input", -110),
        ("filter-forward", "filter", "forward", -110),
        ("filter-output", "filter", "output", -110),
        ("filter-output-post-dnat", "filter", "output", -90),
        ("nat-prerouting", "nat", "prerouting", -100),
        ("nat-output", "nat", "output", -100),
        ("nat-postrouting", "nat", "postrouting", 100),
    ),
    "1.37": (
        ("filter-prerouting-pre-dnat", "filter", "prerouting", -110),
        ("filter-output-pre-dnat", "filter", "output", -110),
        ("filter-input", "filter", "input", 0),
        ("filter-forward", "filter", "forward", 0),
        ("filter-output", "filter", "output", 0),
        ("nat-prerouting", "nat", "prerouting", -100),
        ("nat-output", "nat", "output", -100),
        ("nat-postrouting", "nat", "postrouting", 100),
    ),
}

# Base chain, and the chain that it jumps to.
_JUMPS: dict[Version, tuple[tuple[str, str], ...]] = {
    "1.31": (
        ("filter-input", "nodeport-endpoints-check"),
        ("filter-input", "service-endpoints-check"),
        ("filter-forward", "service-endpoints-check"),
        ("filter-output", "service-endpoints-check"),
        ("filter-prerouting", "firewall-check"),
        ("filter-output", "firewall-check"),
        ("nat-output", "services"),
        ("nat-prerouting", "services"),
        ("nat-postrouting", "masquerading"),
        ("filter-forward", "cluster-ips-check"),
        ("filter-output-post-dnat", "cluster-ips-check"),
    ),
    "1.37": (
        ("filter-input", "nodeport-endpoints-check"),
        ("filter-input", "service-endpoints-check"),
        ("filter-forward", "service-endpoints-check"),
        ("filter-output", "service-endpoints-check"),
        ("filter-prerouting-pre-dnat", "firewall-check"),
        ("filter-output-pre-dnat", "firewall-check"),
        ("nat-output", "services"),
        ("nat-prerouting", "services"),
        ("nat-postrouting", "masquerading"),
        ("filter-forward", "cluster-ips-check"),
        ("filter-output", "cluster-ips-check"),
    ),
}

_FRONTEND = "{address} . inet_proto . inet_service : verdict"
_PORT = "inet_proto . inet_service : verdict"

# Kind, name, type, comment.
_SETS = (
    ("set", "cluster-ips", "{address}", "Active ClusterIPs"),
    ("set", "nodeport-ips", "{address}", "IPs that accept NodePort traffic"),
    (
        "set",
        "hairpin-connections",
        "{address} . {address} . inet_proto . inet_service",
        "service hairpin connections",
    ),
    ("map", "no-endpoint-services", _FRONTEND, "vmap to drop or reject packets to services with no endpoints"),
    ("map", "no-endpoint-nodeports", _PORT, "vmap to drop or reject packets to service nodeports with no endpoints"),
    ("map", "firewall-ips", _FRONTEND, "destinations that are subject to LoadBalancerSourceRanges"),
    ("map", "service-ips", _FRONTEND, "ClusterIP, ExternalIP and LoadBalancer IP traffic"),
    ("map", "service-nodeports", _PORT, "NodePort traffic"),
)


def table_text(family: Family, services: Iterable[Service], version: Version = "1.37", node: Node | None = None) -> str:
    """The whole table of a family as one transaction.

    Args:
        family: 4 or 6; addresses of the services and the node are of that family.
        services: see :class:`layouts.services.Service`.
        version: the Kubernetes release whose layout it has.
        node: what the node adds; None: no pod CIDR, no ServiceCIDR, and NodePorts on all addresses.
    """
    layout = _Layout(family, version, node or Node())
    seen: set[str] = set()
    return "\n".join([*layout.base(), *(line for service in services for line in layout.service(service, seen)), ""])


def pieces(
    family: Family, services: Sequence[Service], size: int, version: Version = "1.37", node: Node | None = None
) -> Iterator[str]:
    """The table as several transactions: the base ruleset, then up to ``size`` services each.

    Args:
        family: as for :func:`table_text`, like the others.
        services: the services.
        size: how many services a transaction holds; at least 1.
        version: the layout.
        node: what the node adds.
    """
    layout = _Layout(family, version, node or Node())
    seen: set[str] = set()
    yield "\n".join([*layout.base(), ""])
    for start in range(0, len(services), size):
        some = services[start : start + size]
        yield "\n".join([*(line for service in some for line in layout.service(service, seen)), ""])


class _Layout:
    """The words of one family and release."""

    def __init__(self, family: Family, version: Version, node: Node) -> None:
        self._old = version == "1.31"
        self._version: Version = version
        self._node = node
        self._ip = "ip" if family == 4 else "ip6"
        self._address = f"ipv{family}_addr"
        self._loopback = "127.0.0.0/8" if family == 4 else "::1"
        mark = f"0x{node.mark:08x}"
        self._set_mark = "jump mark-for-masquerade" if self._old else f"mark set mark or {mark}"
        self._mark = mark

    # The parts that are there without any Service.

    def base(self) -> Iterator[str]:
        """Table, base chains, sets, maps, and the chains between."""
        yield f'add table {self._ip} {TABLE} {{ comment "rules for kube-proxy" ; }}'
        for name, kind, hook, priority in _HOOKS[self._version]:
            yield f"add chain {self._ip} {TABLE} {name} {{ type {kind} hook {hook} priority {priority} ; }}"
        for kind, name, words, comment in _SETS:
            if (self._old and name == "hairpin-connections") or (
                self._node.node_port_addresses is None and name == "nodeport-ips"
            ):
                continue
            declared = words.format(address=self._address)
            yield f'add {kind} {self._ip} {TABLE} {name} {{ type {declared} ; comment "{comment}" ; }}'
        checks = sorted({target for _, target in _JUMPS[self._version]})
        for name in checks if not self._old else [*checks, "mark-for-masquerade"]:
            yield self._chain(name)
        helper = "helper for @no-endpoint-services / @no-endpoint-nodeports"
        yield f'add chain {self._ip} {TABLE} reject-chain {{ comment "{helper}" ; }}'
        for source, target in _JUMPS[self._version]:
            yield self._rule(source, f"{'' if source.startswith('nat-') else 'ct state new '}jump {target}")
        yield from self._static_rules()
        for address in self._node.node_port_addresses or ():
            yield self._element("nodeport-ips", address)

    def _static_rules(self) -> Iterator[str]:
        ip, mark = self._ip, self._mark
        if self._old:
            yield self._rule("mark-for-masquerade", f"mark set mark or {mark}")
            yield self._rule("masquerading", f"mark and {mark} == 0 return")
            yield self._rule("masquerading", f"mark set mark xor {mark}")
            yield self._rule("masquerading", "masquerade fully-random")
        else:
            yield self._rule("masquerading", f"mark and {mark} != 0 mark set mark xor {mark} masquerade fully-random")
            yield self._rule(
                "masquerading",
                f"ct status dnat {ip} saddr . {ip} daddr . meta l4proto . th dport @hairpin-connections "
                "masquerade fully-random",
            )
            if self._node.masquerade_all:
                yield self._rule(
                    "services",
                    f'{ip} daddr @cluster-ips {self._set_mark} comment "masquerade all clusterIP traffic"',
                )
            elif self._node.pod_range:
                yield self._rule(
                    "services",
                    f"{ip} daddr @cluster-ips {ip} saddr != {self._node.pod_range} {self._set_mark} "
                    'comment "masquerade clusterIP traffic from outside cluster"',
                )
        yield self._rule(
            "cluster-ips-check",
            f'{ip} daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"',
        )
        if self._node.service_ranges:
            yield self._rule(
                "cluster-ips-check",
                f"{ip} daddr {{ {','.join(self._node.service_ranges)} }} drop "
                'comment "Drop traffic to unallocated ClusterIPs"',
            )
        yield self._rule("reject-chain", "reject")
        frontend = f"{ip} daddr . meta l4proto . th dport vmap"
        yield self._rule("service-endpoints-check", f"{frontend} @no-endpoint-services")
        if self._node.node_port_addresses is None:
            checked = f"{ip} daddr != {self._loopback}"
            dispatched = f"fib daddr type local {checked}"
        else:
            checked = dispatched = f"{ip} daddr @nodeport-ips"
        yield self._rule("nodeport-endpoints-check", f"{checked} meta l4proto . th dport vmap @no-endpoint-nodeports")
        yield self._rule("firewall-check", f"{frontend} @firewall-ips")
        yield self._rule("services", f"{frontend} @service-ips")
        yield self._rule("services", f"{dispatched} meta l4proto . th dport vmap @service-nodeports")

    # A Service's own part.

    def service(self, service: Service, seen: set[str]) -> Iterator[str]:
        """Chains, elements and rules of a service.

        Args:
            service: the service.
            seen: hairpin elements that are there already (two services may share one); this adds to it.
        """
        base = hashed(service.full_name)
        cluster = service.endpoints if service.uses_cluster_endpoints else ()
        local = service.local_endpoints if service.uses_local_endpoints else ()
        reachable = cluster or local
        ends = {endpoint: hashed(f"{service.full_name}__{_readable(endpoint)}") for endpoint in reachable}
        if not self._old and not service.affinity_seconds:
            ends = {}
        for name in ends.values():
            yield self._chain(f"endpoint-{name}")
        if not self._old:
            yield from self._hairpins(service, reachable, seen)
        choices = {f"service-{base}": cluster, f"local-{base}": local}
        for name, endpoints in choices.items():
            if endpoints:
                yield self._chain(name)
        external = f"external-{base}"
        if service.endpoints and service.externally_accessible:
            yield self._chain(external)
        yield from self._frontends(service, base)
        if service.endpoints and service.externally_accessible:
            yield from self._external(service, external, f"service-{base}", f"local-{base}" if local else None)
        if service.vips and service.source_ranges:
            yield from self._firewall(service, f"firewall-{base}")
        if service.affinity_seconds:
            for name in ends.values():
                yield (
                    f"add set {self._ip} {TABLE} affinity-{name} {{ type {self._address} ; flags dynamic,timeout ; "
                    f"timeout {service.affinity_seconds}s ; }}"
                )
        for name, endpoints in choices.items():
            if endpoints:
                internal = name.startswith("local-") == service.internal_local
                yield from self._choice(service, name, endpoints, ends, internal=internal)
        for endpoint, name in ends.items():
            yield from self._endpoint(service, endpoint, name)

    def _hairpins(self, service: Service, endpoints: Iterable[Endpoint], seen: set[str]) -> Iterator[str]:
        for endpoint in endpoints:
            key = f"{endpoint.address} . {endpoint.address} . {service.protocol} . {endpoint.port}"
            if endpoint.local and key not in seen:
                seen.add(key)
                yield self._element("hairpin-connections", key)

    def _frontends(self, service: Service, base: str) -> Iterator[str]:
        comment = f'comment "{service.label[:_COMMENT_LIMIT]}"'
        missing = "drop" if service.endpoints else "goto reject-chain"
        inside = bool(service.local_endpoints if service.internal_local else service.endpoints)
        outside = bool(service.local_endpoints if service.external_local else service.endpoints)
        chain = f"{'local' if service.internal_local else 'service'}-{base}"
        key = f"{service.cluster_ip} . {service.protocol} . {service.port}"
        yield self._element("cluster-ips", service.cluster_ip)
        if inside:
            yield self._element("service-ips", f"{key} : goto {chain}")
        else:
            yield self._element("no-endpoint-services", f"{key} {comment} : {missing}")
        for address in service.external_ips + service.vips:
            key = f"{address} . {service.protocol} . {service.port}"
            if service.endpoints:
                yield self._element("service-ips", f"{key} : goto external-{base}")
            if address in service.vips and service.source_ranges:
                if address == service.vips[0]:
                    yield self._chain(f"firewall-{base}")
                noted = f"{key} {comment}" if self._old else key
                yield self._element("firewall-ips", f"{noted} : goto firewall-{base}")
            if not outside:
                yield self._element("no-endpoint-services", f"{key} {comment} : {missing}")
        if service.node_port:
            key = f"{service.protocol} . {service.node_port}"
            if service.endpoints:
                yield self._element("service-nodeports", f"{key} : goto external-{base}")
            if not outside:
                yield self._element("no-endpoint-nodeports", f"{key} {comment} : {missing}")

    def _external(self, service: Service, name: str, everywhere: str, here: str | None) -> Iterator[str]:
        if not service.external_local:
            yield self._rule(name, self._set_mark + ("" if self._old else ' comment "masquerade"'))
            yield self._rule(name, f"goto {everywhere}")
            return
        if self._node.pod_range:
            yield self._rule(
                name,
                f'{self._ip} saddr {self._node.pod_range} goto {everywhere} comment "short-circuit pod traffic"',
            )
        yield self._rule(name, f'fib saddr type local {self._set_mark} comment "masquerade local traffic"')
        yield self._rule(name, f'fib saddr type local goto {everywhere} comment "short-circuit local traffic"')
        if here:
            yield self._rule(name, f"goto {here}")

    def _firewall(self, service: Service, name: str) -> Iterator[str]:
        # A node that dials a load balancer's address which it has itself uses that address as source.
        own = service.vips if self._node.is_in(service.source_ranges) else ()
        yield self._rule(name, f"{self._ip} saddr != {{ {' , '.join(service.source_ranges + own)} }} drop")

    def _choice(
        self,
        service: Service,
        name: str,
        endpoints: Sequence[Endpoint],
        chains: dict[Endpoint, str],
        *,
        internal: bool,
    ) -> Iterator[str]:
        if self._old and internal:
            yield from self._old_cluster_ip_mark(service, name)
        endpoints = sorted(endpoints, key=lambda endpoint: endpoint.target)
        if not chains:
            if len(endpoints) == 1:
                yield self._rule(name, f"meta l4proto {service.protocol} dnat to {endpoints[0].target}")
                return
            members = " , ".join(f"{number} : {end.address} . {end.port}" for number, end in enumerate(endpoints))
            yield self._rule(
                name,
                f"meta l4proto {service.protocol} dnat {self._ip} addr . port to "
                f"numgen random mod {len(endpoints)} map {{ {members} }}",
            )
            return
        if service.affinity_seconds:
            for endpoint in endpoints:
                end = chains[endpoint]
                yield self._rule(name, f"{self._ip} saddr @affinity-{end} goto endpoint-{end}")
        members = " , ".join(f"{number} : goto endpoint-{chains[end]}" for number, end in enumerate(endpoints))
        yield self._rule(name, f"numgen random mod {len(endpoints)} vmap {{ {members} }}")

    def _old_cluster_ip_mark(self, service: Service, name: str) -> Iterator[str]:
        target = f"{self._ip} daddr {service.cluster_ip} {service.protocol} dport {service.port}"
        if self._node.masquerade_all:
            yield self._rule(name, f"{target} {self._set_mark}")
        elif self._node.pod_range:
            yield self._rule(name, f"{target} {self._ip} saddr != {self._node.pod_range} {self._set_mark}")

    def _endpoint(self, service: Service, endpoint: Endpoint, name: str) -> Iterator[str]:
        if self._old:
            yield self._rule(f"endpoint-{name}", f"{self._ip} saddr {endpoint.address} {self._set_mark}")
        if service.affinity_seconds:
            yield self._rule(f"endpoint-{name}", f"update @affinity-{name} {{ {self._ip} saddr }}")
        yield self._rule(f"endpoint-{name}", f"meta l4proto {service.protocol} dnat to {endpoint.target}")

    # Single statements.

    def _chain(self, name: str) -> str:
        return f"add chain {self._ip} {TABLE} {name}"

    def _rule(self, chain: str, words: str) -> str:
        return f"add rule {self._ip} {TABLE} {chain} {words}"

    def _element(self, name: str, words: str) -> str:
        return f"add element {self._ip} {TABLE} {name} {{ {words} }}"


def _readable(endpoint: Endpoint) -> str:
    return f"{endpoint.address.replace(':', '.')}/{endpoint.port}"
