"""A Service in every shape, as manifests, and what is to become of whom in each: the rules' meaning, said once more.

Written from Kubernetes' documentation of Services, not with the product's code: the two are held against each other.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from netns import addresses as plan
from netns.addresses import FAMILIES, Family, Pair
from netns.manifests import NAMESPACE, Manifest, endpoint, endpoint_slice
from netns.probe import Answer, Dropped, Flow, Outcome, Refused, Rejected, Unreachable
from netns.servers import Protocol
from netns.world import Host, World

TARGET = 8080
NODE_PORT = 30_001
NAME = "flipped"
CLUSTER_IP, VIP = plan.host(plan.SERVICES, 71), plan.host(plan.VIPS, 71)
EXTERNAL_IPS = {1: plan.host(plan.EXTERNAL_IPS, 71), 2: plan.host(plan.EXTERNAL_IPS, 72)}
INSIDE = plan.host(plan.INSIDE, 2)
PROTOCOLS: tuple[Protocol, Protocol] = ("TCP", "UDP")

Kind = Literal["ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "headless", "gone"]
KINDS: tuple[Kind, ...] = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "headless", "gone")
Condition = Literal["ready", "serving", "terminating", "terminated", "not ready"]
Ports = Literal["both", "TCP", "UDP", "renamed", "renumbered"]
PORTS: tuple[Ports, ...] = ("both", "TCP", "UDP", "renamed", "renumbered")
Ranges = Literal["none", "everyone", "inside"]
Who = Literal["pod", "node", "outside", "inside"]

_CONDITIONS: dict[Condition, dict[str, bool]] = {
    "ready": {"ready": True, "serving": True, "terminating": False},
    "serving": {"ready": False, "serving": True, "terminating": False},
    "terminating": {"ready": False, "serving": True, "terminating": True},
    "terminated": {"ready": False, "serving": False, "terminating": True},
    "not ready": {"ready": False, "serving": False, "terminating": False},
}
_RANGES: dict[Ranges, tuple[Pair, ...]] = {
    "none": (),
    "everyone": (plan.INSIDE, plan.UNDERLAY, plan.CLUSTER),
    "inside": (plan.INSIDE,),
}


@dataclass(frozen=True, slots=True)
class End:
    """An endpoint.

    Attributes:
        pod: the pod's name.
        condition: what its slice says of it.
        node: the node that its slice says it is on; None: the one it is on.
    """

    pod: str
    condition: Condition = "ready"
    node: str | None = None

    @property
    def local(self) -> bool:
        """Whether it counts as being on node-a."""
        return (self.node or f"node-{self.pod[4]}") == "node-a"


@dataclass(frozen=True, slots=True)
class Shape:
    """A Service and its endpoints."""

    kind: Kind = "LoadBalancer"
    ports: Ports = "both"
    external_local: bool = False
    internal_local: bool = False
    affinity_seconds: int = 0
    ip_mode: Literal["VIP", "Proxy"] = "VIP"
    ranges: Ranges = "none"
    external_ips: tuple[int, ...] = ()
    ends: tuple[End, ...] = (End("pod-a1"), End("pod-b1"))

    @property
    def serves(self) -> bool:
        """Whether the proxy has anything to do with it."""
        return self.kind in ("ClusterIP", "NodePort", "LoadBalancer")

    @property
    def port(self) -> int:
        """Its port."""
        return 81 if self.ports == "renumbered" else 80

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """Its ports' protocols."""
        return (self.ports,) if self.ports in ("TCP", "UDP") else PROTOCOLS


def manifests(shape: Shape, world: World) -> list[Manifest]:
    """The Service and its EndpointSlices; nothing for one that is gone."""
    if shape.kind == "gone":
        return []
    with_node_port = shape.kind in ("NodePort", "LoadBalancer")
    prefix = "web" if shape.ports == "renamed" else "p"
    ports: list[Manifest] = [
        {"name": f"{prefix}-{protocol.lower()}", "protocol": protocol, "port": shape.port}
        | ({"nodePort": NODE_PORT} if with_node_port else {})
        for protocol in shape.protocols
    ]
    spec: Manifest = {"type": "ClusterIP" if shape.kind == "headless" else shape.kind, "ports": ports}
    if shape.kind == "ExternalName":
        spec["externalName"] = "elsewhere.example"
    else:
        cluster_ips = ["None"] if shape.kind == "headless" else list(CLUSTER_IP)
        spec |= {
            "clusterIP": cluster_ips[0],
            "clusterIPs": cluster_ips,
            "ipFamilies": [f"IPv{family}" for family in FAMILIES],
            "internalTrafficPolicy": "Local" if shape.internal_local else "Cluster",
        }
    if shape.affinity_seconds:
        spec["sessionAffinity"] = "ClientIP"
        spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": shape.affinity_seconds}}
    if shape.external_ips:
        spec["externalIPs"] = [address for number in shape.external_ips for address in EXTERNAL_IPS[number]]
    if with_node_port or shape.external_ips:
        spec["externalTrafficPolicy"] = "Local" if shape.external_local else "Cluster"
    whole: Manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": spec,
    }
    if shape.kind == "LoadBalancer":
        if shape.ranges != "none":
            spec["loadBalancerSourceRanges"] = [text for pair in _RANGES[shape.ranges] for text in pair]
        ingress = [{"ip": address, "ipMode": shape.ip_mode} for address in VIP]
        whole["status"] = {"loadBalancer": {"ingress": ingress}}
    return [whole, *(_slice(shape, world, family, ports) for family in FAMILIES)]


def _slice(shape: Shape, world: World, family: Family, ports: Iterable[Manifest]) -> Manifest:
    entries = [
        endpoint(world.pod(end.pod), family, conditions=_CONDITIONS[end.condition])
        | ({"nodeName": end.node} if end.node else {})
        for end in shape.ends
    ]
    targets = [{"name": port["name"], "protocol": port["protocol"], "port": TARGET} for port in ports]
    return endpoint_slice(NAME, family, entries, targets)


@dataclass(frozen=True, slots=True)
class Served:
    """One of some pods answers, and sees the client as it is, or as its node."""

    names: frozenset[str]
    masked: bool


Fate = Served | type[Rejected | Dropped | Refused | Unreachable]


def accepts(outcome: Outcome, fate: Fate, own: set[str]) -> bool:
    """Whether an outcome is a fate, where the node's own addresses are ``own``."""
    if not isinstance(fate, Served):
        return isinstance(outcome, fate)
    if not isinstance(outcome, Answer) or outcome.name not in fate.names:
        return False
    return outcome.source in own if fate.masked else not outcome.masqueraded


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the Service: who takes it, and to which frontend.

    Attributes:
        who: a pod of node-a that is no endpoint, node-a, the client outside, or the client with an address of INSIDE.
        frontend: ``cluster``, ``node``, ``vip``, ``external-1`` or ``external-2``.
        protocol: TCP or UDP.
        family: 4 or 6.
        port: for ``cluster`` 80 or 81; for the others 80.
    """

    who: Who
    frontend: str
    protocol: Protocol
    family: Family
    port: int = 80

    def __str__(self) -> str:
        return f"{self.who} to {self.frontend}:{self.port} over {self.protocol}/IPv{self.family}"

    def host(self, world: World) -> Host:
        """Who takes it."""
        hosts: dict[Who, Host] = {"pod": world.pod("pod-a3"), "node": world.node("node-a")}
        return hosts.get(self.who, world.client)

    def flow(self, world: World) -> Flow:
        """The same in addresses."""
        frontends = {"cluster": CLUSTER_IP, "vip": VIP, "node": plan.node_address(0)}
        frontends |= {f"external-{number}": pair for number, pair in EXTERNAL_IPS.items()}
        port = NODE_PORT if self.frontend == "node" else self.port
        source = INSIDE.of(self.family) if self.who == "inside" else None
        address = frontends[self.frontend].of(self.family)
        return Flow(self.host(world).namespace, address, port, self.protocol, source)

    def accepts(self, outcome: Outcome, fate: Fate, world: World) -> bool:
        """Whether an outcome is a fate."""
        return accepts(outcome, fate, world.node("node-a").own(self.family))

    def fate(self, shape: Shape) -> Fate:
        """What is to become of it."""
        matches = self.protocol in shape.protocols and (self.port == shape.port or self.frontend == "node")
        if self.frontend == "cluster":
            if not shape.serves:
                return Dropped  # an unallocated address of the ServiceCIDR
            return _choose(shape, local=shape.internal_local, masked=self.who != "pod") if matches else Rejected
        if self.frontend == "node":
            if not matches or shape.kind not in ("NodePort", "LoadBalancer"):
                return Refused if self.protocol == "TCP" else Rejected  # nobody listens there
        elif self.frontend == "vip":
            if not matches or shape.kind != "LoadBalancer" or shape.ip_mode != "VIP":
                return Unreachable
            if shape.ranges == "inside" and self.who != "inside":
                return Dropped
        elif not matches or not shape.serves or int(self.frontend[-1]) not in shape.external_ips:
            return Unreachable
        # Under the policy Local, this node and its pods may go on to all endpoints, and pods stay who they are.
        return _choose(
            shape,
            local=shape.external_local and self.who not in ("pod", "node"),
            masked=self.who == "node" if shape.external_local else True,
        )


def _choose(shape: Shape, *, local: bool, masked: bool) -> Fate:
    def usable(ends: Iterable[End]) -> frozenset[str]:
        ends = list(ends)
        ready = frozenset(end.pod for end in ends if end.condition == "ready")
        return ready or frozenset(end.pod for end in ends if end.condition == "terminating")

    if not usable(shape.ends):
        return Rejected
    names = usable(end for end in shape.ends if end.local or not local)
    return Served(names, masked) if names else Dropped


def ways(frontends: Iterable[str], *, others: bool = True) -> list[Way]:
    """From everybody to some frontends, over both protocols and families.

    Args:
        frontends: see :class:`Way`; ``cluster:81`` for the other port of the ClusterIP.
        others: from outside with an address of INSIDE as well.
    """
    everybody: tuple[Who, ...] = ("pod", "node", "outside", "inside") if others else ("pod", "node", "outside")
    return [
        Way(who, name, protocol, family, int(port or 80))
        for frontend in frontends
        for name, _, port in [frontend.partition(":")]
        for who in everybody
        for protocol in PROTOCOLS
        for family in FAMILIES
    ]
