"""One service of every kind, in both families: the cases of the golden files."""

from dataclasses import dataclass, field
from typing import Any

from nodeproxy.kube.addresses import Family
from nodeproxy.model.endpoints import Endpoint
from nodeproxy.model.service import ServicePort
from nodeproxy.ruleset.diff import BaseAndAddresses
from nodeproxy.ruleset.listing import list_table
from nodeproxy.ruleset.render import Renderer
from nodeproxy.ruleset.rules import ServiceRules
from unit.ruleset.build import NODE_ADDRESS, V4, V6, ep, planned, port, renderer


@dataclass(frozen=True)
class Example:
    """A golden file: what a table holds for some service ports, or its base if there are none."""

    name: str
    family: Family
    services: tuple[tuple[ServicePort, tuple[Endpoint, ...]], ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    endpoint_chains: Any = "WhenAffinity"

    @property
    def file(self) -> str:
        """The file's name."""
        return f"{self.name}{'-ipv6' if self.family is V6 else ''}.nft"

    def plans(self) -> list[ServiceRules]:
        """The plans of its service ports."""
        return [planned(p, *endpoints, endpoint_chains=self.endpoint_chains) for p, endpoints in self.services]

    def renderer(self) -> Renderer:
        """The renderer of its settings."""
        return renderer(self.family, **self.settings)

    def base(self) -> BaseAndAddresses:
        """What does not depend on services."""
        made = self.renderer().base()
        everywhere = self.settings.get("node_ports_everywhere", False)
        return made, () if everywhere else (NODE_ADDRESS[self.family],)

    def text(self, *, whole: bool) -> str:
        """The listing; ``whole``: with the base."""
        return list_table(self.renderer(), self.base(), self.plans(), whole=whole)

    def golden(self) -> str:
        """The content of the golden file: the base, or what services add to it."""
        return self.text(whole=not self.services)


def _examples(family: Family) -> list[Example]:
    v4 = family is V4

    def cluster_ip(last: int) -> str:
        return f"172.30.0.{last}" if v4 else f"fd00:172:30::{last}"

    def pod(last: int) -> str:
        return f"10.180.0.{last}" if v4 else f"fd00:10:180::{last}"

    def outside(v4_address: str, last: int) -> str:
        return v4_address if v4 else f"2001:db8::{last}"

    def example(name: str, shape: ServicePort, *endpoints: Endpoint, **fields: Any) -> Example:
        return Example(name, family, ((shape, endpoints),), **fields)

    node_range = "192.168.0.0/24" if v4 else "fd00:192:168::/48"
    client_range = "203.0.113.0/25" if v4 else "2001:db8:113::/48"
    affinity = port("ns5/svc5", cluster_ip(45), affinity_seconds=10800)
    guarded = port(
        "ns5/svc5",
        cluster_ip(45),
        node_port=3002,
        load_balancer_vips=(outside("5.6.7.8", 8),),
        source_ranges=(client_range,),
        affinity_seconds=10800,
    )
    external_local = port(
        "ns2/svc2",
        cluster_ip(42),
        node_port=3001,
        load_balancer_vips=(outside("1.2.3.4", 4),),
        external_ips=(outside("192.168.99.22", 22),),
        external_policy_local=True,
        health_check_node_port=30000,
    )
    return [
        Example("base", family),
        Example("base-node-ports-everywhere", family, settings={"node_ports_everywhere": True}),
        Example("base-masquerade-all", family, settings={"masquerade_all": True, "service_cidrs": ()}),
        example("cluster-ip", port("ns1/svc1", cluster_ip(41)), ep(pod(1))),
        example("load-balancer-local-policy-remote-endpoint", external_local, ep(pod(2), "other-node")),
        example("load-balancer-local-policy", external_local, ep(pod(1)), ep(pod(2), "other-node")),
        example("node-port", port("ns3/svc3", cluster_ip(43), node_port=3003), ep(pod(3))),
        example(
            "external-ip-two-endpoints",
            port("ns4/svc4", cluster_ip(44), external_ips=(outside("192.168.99.33", 33),)),
            ep(pod(4), "other-node"),
            ep(pod(5)),
        ),
        example("source-ranges-and-affinity", guarded, ep(pod(3))),
        example(
            "source-ranges-that-hold-the-node",
            port(
                "ns5/svc5",
                cluster_ip(45),
                load_balancer_vips=(outside("5.6.7.8", 8), outside("5.6.7.9", 9)),
                source_ranges=(node_range, client_range),
            ),
            ep(pod(3)),
        ),
        example("affinity-two-endpoints", affinity, ep(pod(3)), ep(pod(4), "other-node")),
        example(
            "endpoint-chains-always", port("ns4/svc4", cluster_ip(44)), ep(pod(4)), ep(pod(5)), endpoint_chains="Always"
        ),
        example("no-endpoints", port("ns6/svc6", cluster_ip(46))),
        Example(
            "several-services",
            family,
            (
                (external_local, (ep(pod(1)), ep(pod(2), "other-node"))),
                (port("ns4/svc4", cluster_ip(44)), (ep(pod(4), "other-node"), ep(pod(5)), ep(pod(6)))),
                (port("ns6/svc6", cluster_ip(46)), ()),
            ),
        ),
    ]


EXAMPLES = [*_examples(V4), *_examples(V6)]
