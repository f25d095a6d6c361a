"""The objects of a seed: for each cell a Service, its load balancer's status and its EndpointSlices.

What a cell does not say is drawn: families, ports, protocols, affinity, source ranges, addresses. Each drawn value that
matters is also kept as a trait, so that it can be seen what came up. Whether an object is valid is not decided here.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from cluster.differential.cells import Cell, Kind, deal
from cluster.differential.states import ZONES, Backend, State
from netns import addresses as plan
from netns.addresses import Family, Pair
from netns.manifests import Manifest

NAMESPACE = "differential"
TARGETS = (8080, 9090, 5353)
"""Ports that every endpoint answers on, over every protocol."""
UNUSED_PORT = 4
"""A port that no Service has."""
SERVICE_NAME_LABEL = "kubernetes.io/service-name"
PROXY_NAME_LABEL = "service.kubernetes.io/service-proxy-name"
RANGES_ANNOTATION = "service.beta.kubernetes.io/load-balancer-source-ranges"

_FAMILIES: dict[str, Manifest] = {
    "IPv4": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]},
    "IPv6": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]},
    "IPv4 and IPv6": {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]},
    "IPv6 and IPv4": {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]},
    "PreferDualStack": {"ipFamilyPolicy": "PreferDualStack"},
}
_RANGES: dict[str, list[str]] = {
    "the client's": [*plan.INSIDE],
    "the client's, and the nodes'": [*plan.INSIDE, *plan.UNDERLAY],
    "the pods'": [*plan.CLUSTER],
    "one client": ["203.0.113.9/32", "2001:db8:203::9/128"],
    "everybody": ["0.0.0.0/0", "::/0"],
    "overlapping, with spaces": ["203.0.112.0/20", " 203.0.113.0/24 ", "2001:db8:203::/64", " 2001:db8::/32"],
    "of IPv4 only": [plan.INSIDE.v4],
    "of IPv6 only": [plan.OUTSIDE.v6],
}
_DISTRIBUTIONS: dict[str, None] = dict.fromkeys(("none", "PreferClose", "PreferSameZone", "PreferSameNode"))
_SHARED_PORT = 0.3
_MOST_STICKY = 4
_AFFINITY_SECONDS = (30, 600, 10800)


class Rare(StrEnum):
    """What only some Services have."""

    SAME_NUMBER = "two protocols on one port number"
    NAMED_TARGET = "a named target port"
    UNNAMED = "a port without a name"
    AFFINITY = "session affinity"
    PUBLISHES = "publishNotReadyAddresses"
    SELECTOR = "a selector, and so a slice of the controller's"
    OTHER_PROXY = "another proxy's"
    EXTERNAL_IPS = "external IPs"
    TWO_EXTERNAL_IPS = "two external IPs of a family"
    ONE_FAMILYS_EXTERNAL_IPS = "an external IP of one family only"
    NO_NODE_PORTS = "a load balancer without NodePorts"
    ANNOTATED = "source ranges in the annotation"
    PENDING = "a load balancer without a status"
    TWO_VIPS = "two addresses of a load balancer"
    PROXY_MODE = "a load balancer's address in mode Proxy"
    HOST_NAME = "a load balancer with a host name"
    UNLIKE_FAMILIES = "one family has fewer endpoints"
    SEVERAL_SLICES = "several slices of a family"
    MISSING_PORT = "a slice without one of the ports"


@dataclass(frozen=True)
class Made:
    """A Service with all that belongs to it, as it is created.

    Attributes:
        cell: what it stands for.
        service: the object.
        status: its status' ``loadBalancer``; None: it gets none.
        slices: its EndpointSlices.
        traits: what was drawn for it.
    """

    cell: Cell
    service: Manifest
    status: Manifest | None
    slices: list[Manifest]
    traits: frozenset[str]

    @property
    def name(self) -> str:
        """The Service's name."""
        name: str = self.service["metadata"]["name"]
        return name


@dataclass
class _Draft:
    """A Service while its properties are drawn."""

    seed: int
    number: int
    cell: Cell
    rng: Random
    spec: Manifest = field(default_factory=dict)
    metadata: Manifest = field(default_factory=dict)
    status: Manifest | None = None
    traits: set[str] = field(default_factory=set)

    def chance(self, likelihood: float, trait: str) -> bool:
        """Whether something rare is so; noted."""
        if self.rng.random() >= likelihood:
            return False
        self.traits.add(trait)
        return True

    def pick(self, what: str, choices: dict[str, Manifest] | dict[str, list[str]] | dict[str, None]) -> str:
        """One of some named choices; noted."""
        name = self.rng.choice(list(choices))
        self.traits.add(f"{what}: {name}")
        return name


def cluster(seed: int) -> list[Made]:
    """The Services of a seed; the same for the same seed."""
    rng = Random(f"cluster {seed}")  # noqa: S311 - shapes, nothing secret
    return [_make(_Draft(seed, number, cell, rng)) for number, cell in enumerate(deal(seed), 1)]


def every_trait() -> frozenset[str]:
    """All that may be drawn: what has to come up within a round."""
    named = {
        *(f"families: {name}" for name in _FAMILIES),
        *(f"source ranges: {name}" for name in _RANGES),
        *(f"protocol: {name}" for name in ("TCP", "UDP", "SCTP")),
        *(f"ports: {count}" for count in (1, 2, 3)),
        *(f"distribution: {name}" for name in _DISTRIBUTIONS),
    }
    return frozenset(named | set(Rare))


def _make(draft: _Draft) -> Made:
    cell, rng = draft.cell, draft.rng
    draft.metadata |= {"name": f"s{draft.seed}-{draft.number}", "namespace": NAMESPACE, "labels": {}, "annotations": {}}
    backends = cell.state.backends(rng)
    _shape(draft)
    ports = _ports(draft)
    if cell.kind is not Kind.EXTERNAL_NAME:
        draft.spec["ports"] = ports
    if cell.kind.served:
        _policies(draft)
        _affinity(draft, len(backends or []))
        _oddities(draft)
    if cell.kind is not Kind.CLUSTER_IP:
        _external_ips(draft)
    if cell.kind is Kind.LOAD_BALANCER:
        _load_balancer(draft)
    slices = _slices(draft, ports, backends)
    service = {"apiVersion": "v1", "kind": "Service", "metadata": draft.metadata, "spec": draft.spec}
    return Made(cell, service, draft.status, slices, frozenset(draft.traits))


def _shape(draft: _Draft) -> None:
    spec, kind = draft.spec, draft.cell.kind
    if kind is Kind.EXTERNAL_NAME:
        spec |= {"type": "ExternalName", "externalName": "elsewhere.example"}
        return
    spec["type"] = {Kind.NODE_PORT: "NodePort", Kind.LOAD_BALANCER: "LoadBalancer"}.get(kind, "ClusterIP")
    spec |= _FAMILIES[draft.pick("families", _FAMILIES)]
    if kind is Kind.HEADLESS:
        spec["clusterIP"] = "None"


def _ports(draft: _Draft) -> list[Manifest]:
    rng = draft.rng
    count = rng.choice([1, 1, 2, 3])
    draft.traits.add(f"ports: {count}")
    found: list[Manifest] = []
    for index in range(count):
        protocol = rng.choices(["TCP", "UDP", "SCTP"], [9, 7, 3])[0]
        number = 80 + index
        taken = {(entry["protocol"], entry["port"]) for entry in found}
        if found and (protocol, found[-1]["port"]) not in taken and draft.chance(_SHARED_PORT, Rare.SAME_NUMBER):
            number = found[-1]["port"]
        target = rng.choice(["web", "admin", *TARGETS])
        if isinstance(target, str):
            draft.traits.add(Rare.NAMED_TARGET)
        draft.traits.add(f"protocol: {protocol}")
        found.append({"name": f"p{index}", "protocol": protocol, "port": number, "targetPort": target})
    if count == 1 and draft.chance(0.3, Rare.UNNAMED):
        del found[0]["name"]
    return found


def _policies(draft: _Draft) -> None:
    draft.spec["internalTrafficPolicy"] = draft.cell.internal.value
    if draft.cell.kind.from_outside:
        draft.spec["externalTrafficPolicy"] = draft.cell.external.value
    distribution = draft.pick("distribution", _DISTRIBUTIONS)
    if distribution != "none":
        draft.spec["trafficDistribution"] = distribution


def _affinity(draft: _Draft, endpoints: int) -> None:
    # More endpoints would take more clients than there are addresses to dial from.
    if endpoints <= _MOST_STICKY and draft.chance(0.35, Rare.AFFINITY):
        draft.spec["sessionAffinity"] = "ClientIP"
        seconds = draft.rng.choice(_AFFINITY_SECONDS)
        draft.spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": seconds}}


def _oddities(draft: _Draft) -> None:
    spec = draft.spec
    if draft.cell.state is State.PUBLISHED:
        spec["publishNotReadyAddresses"] = True
        draft.traits.add(Rare.PUBLISHES)
    if draft.chance(0.2, Rare.SELECTOR):
        spec["selector"] = {"app": "nobody"}
    if draft.chance(0.05, Rare.OTHER_PROXY):
        draft.metadata["labels"][PROXY_NAME_LABEL] = "another"


def _external_ips(draft: _Draft) -> None:
    always = draft.cell.kind is Kind.EXTERNAL_IP or not draft.cell.kind.served
    if not always and draft.rng.random() >= 0.3:
        return
    draft.traits.add(Rare.EXTERNAL_IPS)
    pairs = [plan.host(plan.EXTERNAL_IPS, draft.number)]
    if draft.chance(0.3, Rare.TWO_EXTERNAL_IPS):
        pairs.append(plan.host(plan.EXTERNAL_IPS, draft.number + 50))
    draft.spec["externalIPs"] = [address for pair in pairs for address in pair]
    if draft.chance(0.2, Rare.ONE_FAMILYS_EXTERNAL_IPS):
        draft.spec["externalIPs"] = [draft.rng.choice(pairs[0])]


def _load_balancer(draft: _Draft) -> None:
    spec, rng = draft.spec, draft.rng
    if draft.chance(0.25, Rare.NO_NODE_PORTS):
        spec["allocateLoadBalancerNodePorts"] = False
    if rng.random() < 0.5:
        spec["loadBalancerSourceRanges"] = _RANGES[draft.pick("source ranges", _RANGES)]
    elif draft.chance(0.2, Rare.ANNOTATED):
        draft.metadata["annotations"][RANGES_ANNOTATION] = ",".join(plan.INSIDE)
    if draft.chance(0.07, Rare.PENDING):
        return
    ingress: list[Manifest] = [{"ip": address, "ipMode": "VIP"} for address in vip(draft.number)]
    if draft.chance(0.2, Rare.TWO_VIPS):
        ingress += [{"ip": address} for address in vip(draft.number + 50)]
    if draft.chance(0.25, Rare.PROXY_MODE):
        ingress += [{"ip": address, "ipMode": "Proxy"} for address in vip(draft.number + 100)]
    if draft.chance(0.15, Rare.HOST_NAME):
        ingress.append({"hostname": "balancer.example"})
    rng.shuffle(ingress)
    draft.status = {"ingress": ingress}


def vip(number: int) -> Pair:
    """A load balancer's addresses: those of even numbers are also addresses of the node, as some clouds have it."""
    return plan.host(plan.VIPS, number)


def _slices(draft: _Draft, ports: list[Manifest], backends: list[Backend] | None) -> list[Manifest]:
    """Slices of both families, whatever families the Service has: who has none of a family has to ignore them."""
    if backends is None:
        return []
    rng = draft.rng
    slices: list[Manifest] = []
    families: tuple[tuple[Family, str], ...] = ((4, "IPv4"), (6, "IPv6"))
    for family, family_name in families:
        own = list(backends)
        if len(own) > 1 and draft.chance(0.15, Rare.UNLIKE_FAMILIES):
            own = rng.sample(own, len(own) - 1)
        count = 1
        if len(own) > 1 and draft.chance(0.4, Rare.SEVERAL_SLICES):
            count = rng.randint(2, min(3, len(own)))
        for number in range(count):
            name = f"{draft.metadata['name']}-v{family}-{number}"
            slices.append(
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {
                        "name": name,
                        "namespace": NAMESPACE,
                        "labels": {SERVICE_NAME_LABEL: draft.metadata["name"]},
                    },
                    "addressType": family_name,
                    "endpoints": [_endpoint(backend, family) for backend in own[number::count]],
                    "ports": _slice_ports(draft, ports),
                }
            )
    return slices


def _slice_ports(draft: _Draft, ports: list[Manifest]) -> list[Manifest]:
    rng = draft.rng
    found = []
    for entry in ports:
        if len(ports) > 1 and draft.chance(0.08, Rare.MISSING_PORT):
            continue
        target = entry["targetPort"]
        number = rng.choice(TARGETS) if isinstance(target, str) else target
        named = {"name": entry["name"]} if "name" in entry else {}
        found.append({**named, "protocol": entry["protocol"], "port": number})
    return found


def _endpoint(backend: Backend, family: Family) -> Manifest:
    conditions = dict(zip(("ready", "serving", "terminating"), backend.conditions, strict=True))
    entry: Manifest = {
        "addresses": [host_addresses(backend.host).of(family)],
        "conditions": {name: value for name, value in conditions.items() if value is not None},
        "zone": ZONES["abc".index(backend.node[-1])],
    }
    if not backend.nodeless:
        entry["nodeName"] = backend.node
    hints: Manifest = {}
    if backend.zones:
        hints["forZones"] = [{"name": zone} for zone in backend.zones]
    if backend.nodes:
        hints["forNodes"] = [{"name": name} for name in backend.nodes]
    return entry | ({"hints": hints} if hints else {})


def host_addresses(name: str) -> Pair:
    """The addresses of a pod or node of the test's network, by its name: pod-b2, node-a."""
    kind, _, rest = name.partition("-")
    index = "abc".index(rest[0])
    return plan.node_address(index) if kind == "node" else plan.pod_address(index, int(rest[1:]))
