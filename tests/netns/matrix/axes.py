"""The values that each property of a cell may have."""

from dataclasses import dataclass
from enum import Enum

from netns import addresses as plan


class Policy(Enum):
    """externalTrafficPolicy, internalTrafficPolicy."""

    CLUSTER = "Cluster"
    LOCAL = "Local"


class Condition(Enum):
    """What an endpoint's conditions amount to."""

    READY = "ready"
    DRAINING = "serving and terminating"
    UNREADY = "neither ready nor serving"
    FINISHED = "terminating and not serving"


@dataclass(frozen=True, slots=True)
class Backend:
    """An endpoint of a Service.

    Attributes:
        pod: the pod's name, which says on which node it is (pod-a1 is on node-a).
        condition: its condition.
        zones: its hints for zones.
        nodes: its hints for nodes.
    """

    pod: str
    condition: Condition = Condition.READY
    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def local(self) -> bool:
        """Whether it is on the node of the proxy under test."""
        return self.pod.startswith("pod-a")


HERE, ELSEWHERE = "zone-1", "zone-2"
"""The zone of the node of the proxy under test, and another."""


class State(Enum):
    """The endpoints that a Service has."""

    NONE = "none"
    UNREADY = "unready"
    REMOTE = "remote"
    LOCAL = "local"
    TERMINATING = "terminating"
    TERMINATING_REMOTE = "terminating remote"
    TERMINATING_LOCAL = "terminating local"
    DRAINING = "local terminating, remote ready"
    MIXED = "mixed"

    HINT_ZONE = "zone hints"
    HINT_ZONE_MISSING = "a zone hint missing"
    HINT_ZONE_ELSEWHERE = "hints for another zone only"
    HINT_NODE = "node hints"
    HINT_NODE_OVER_ZONE = "node hints before zone hints"
    HINT_NODE_ELSEWHERE = "node hints for another node, so zone hints"
    HINT_LOCAL_AWAY = "local endpoint hinted to another zone"
    HINT_UNREADY = "an unready endpoint without hint"
    HINT_TERMINATING = "hints of terminating endpoints only"

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The endpoints."""
        return _BACKENDS[self]


BASE_STATES = tuple(state for state in State if not state.name.startswith("HINT_"))
HINT_STATES = tuple(state for state in State if state.name.startswith("HINT_"))

_DRAINING, _UNREADY, _FINISHED = Condition.DRAINING, Condition.UNREADY, Condition.FINISHED
_BACKENDS: dict[State, tuple[Backend, ...]] = {
    State.NONE: (),
    State.UNREADY: (Backend("pod-a1", _UNREADY), Backend("pod-b1", _FINISHED)),
    State.REMOTE: (Backend("pod-b1"),),
    State.LOCAL: (Backend("pod-a1"),),
    State.TERMINATING: (Backend("pod-a1", _DRAINING), Backend("pod-b1", _DRAINING)),
    State.TERMINATING_REMOTE: (Backend("pod-b1", _DRAINING),),
    State.TERMINATING_LOCAL: (Backend("pod-a1", _DRAINING),),
    State.DRAINING: (Backend("pod-a1", _DRAINING), Backend("pod-b1")),
    State.MIXED: (
        Backend("pod-a1"),
        Backend("pod-a2", _DRAINING),
        Backend("pod-b1"),
        Backend("pod-b2", _UNREADY),
    ),
    State.HINT_ZONE: (
        Backend("pod-a1", zones=(HERE,)),
        Backend("pod-b1", zones=(ELSEWHERE,)),
        Backend("pod-b2", zones=(ELSEWHERE, HERE)),
    ),
    State.HINT_ZONE_MISSING: (Backend("pod-a1", zones=(HERE,)), Backend("pod-b1")),
    State.HINT_ZONE_ELSEWHERE: (Backend("pod-a1", zones=(ELSEWHERE,)), Backend("pod-b1", zones=(ELSEWHERE,))),
    State.HINT_NODE: (Backend("pod-a1", nodes=("node-b",)), Backend("pod-b1", nodes=("node-a",))),
    State.HINT_NODE_OVER_ZONE: (
        Backend("pod-a1", zones=(ELSEWHERE,), nodes=("node-a",)),
        Backend("pod-b1", zones=(HERE,), nodes=("node-b",)),
    ),
    State.HINT_NODE_ELSEWHERE: (
        Backend("pod-a1", zones=(ELSEWHERE,), nodes=("node-c",)),
        Backend("pod-b1", zones=(HERE,), nodes=("node-c",)),
    ),
    State.HINT_LOCAL_AWAY: (Backend("pod-a1", zones=(ELSEWHERE,)), Backend("pod-b1", zones=(HERE,))),
    State.HINT_UNREADY: (
        Backend("pod-a1", zones=(HERE,)),
        Backend("pod-a2", _UNREADY),
        Backend("pod-b1", zones=(ELSEWHERE,)),
    ),
    State.HINT_TERMINATING: (
        Backend("pod-a1", _DRAINING, zones=(HERE,)),
        Backend("pod-b1", _DRAINING, zones=(ELSEWHERE,)),
    ),
}


class Target(Enum):
    """What a client dials."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    EXTERNAL_IP = "externalIP"
    VIP = "VIP"
    PROXY_VIP = "VIP with ipMode Proxy"

    NODE_PORT_SECONDARY = "NodePort on the secondary address"
    NODE_PORT_BRIDGE = "NodePort on the bridge's address"
    NODE_PORT_LOOPBACK = "NodePort on loopback"

    OTHER_PORT = "another port of the ClusterIP"
    UNALLOCATED = "a ClusterIP of no Service"
    VIP_OTHER_PORT = "another port of the VIP"
    EXTERNAL_IP_OTHER_PORT = "another port of the externalIP"

    @property
    def node_port(self) -> bool:
        """Whether it is a port of a node's address."""
        return self.name.startswith("NODE_PORT")


STRAY_TARGETS = (Target.OTHER_PORT, Target.UNALLOCATED, Target.VIP_OTHER_PORT, Target.EXTERNAL_IP_OTHER_PORT)
"""What no port of a Service is at."""
BASE_TARGETS = (Target.CLUSTER_IP, Target.NODE_PORT, Target.EXTERNAL_IP, Target.VIP, Target.PROXY_VIP)


class Kind(Enum):
    """What addresses a Service has, which is more than its type says."""

    EVERYTHING = "of type LoadBalancer with everything"
    CLUSTER_IP = "of type ClusterIP"
    EXTERNAL_IP = "of type ClusterIP with external IPs"
    NODE_PORT = "of type NodePort"
    PLAIN_VIP = "of type LoadBalancer without NodePorts, ipMode not given"

    @property
    def targets(self) -> tuple[Target, ...]:
        """Where it can be dialled."""
        return _TARGETS[self]


_TARGETS: dict[Kind, tuple[Target, ...]] = {
    Kind.EVERYTHING: BASE_TARGETS,
    Kind.CLUSTER_IP: (Target.CLUSTER_IP,),
    Kind.EXTERNAL_IP: (Target.CLUSTER_IP, Target.EXTERNAL_IP),
    Kind.NODE_PORT: (Target.CLUSTER_IP, Target.NODE_PORT),
    Kind.PLAIN_VIP: (Target.CLUSTER_IP, Target.VIP),
}


class Protocol(Enum):
    """Transport."""

    TCP = "TCP"
    UDP = "UDP"
    SCTP = "SCTP"


class Source(Enum):
    """Who dials. The proxy under test runs on node-a."""

    POD = "pod"
    """A pod of node-a that is no endpoint."""
    ENDPOINT = "endpoint"
    """pod-a1, which is an endpoint of most Services."""
    NODE = "node"
    """node-a, from its primary address."""
    OUTSIDE = "outside"
    """A client outside of the cluster."""
    OTHER_POD = "pod of another node"
    """A pod of node-c: in the cluster's range, not in node-a's."""

    STRANGER = "bridged pod with an address of no pod range"
    """On node-a's bridge, so only an interface tells that it is a pod."""
    STRANGER_PORT = "pod with an interface of its own and an address of no pod range"
    """On an interface of node-a whose name begins like the bridge's."""
    OUTSIDE_TOO = "outside, other range"
    """The same client with an address of another range."""
    NODE_AS_VIP = "node as VIP"
    """node-a, which has the load balancer's address, from that address."""


BASE_SOURCES = (Source.POD, Source.ENDPOINT, Source.NODE, Source.OUTSIDE, Source.OTHER_POD)
DETECTED_SOURCES = (*BASE_SOURCES, Source.STRANGER, Source.STRANGER_PORT)
RANGED_SOURCES = (
    Source.POD,
    Source.NODE,
    Source.OUTSIDE,
    Source.OTHER_POD,
    Source.OUTSIDE_TOO,
    Source.NODE_AS_VIP,
)


class Ranges(Enum):
    """A Service's loadBalancerSourceRanges."""

    ANY = "no ranges"
    CLIENT = "the client's range"
    NODE = "the client's range and the node's"
    PODS = "the cluster's range"
    ONE_FAMILY = "the client's IPv4 range"
    UNREADABLE = "nothing readable"
    ANNOTATION = "the client's range, in the annotation"
    EVERYBODY = "everybody"

    @property
    def texts(self) -> tuple[str, ...]:
        """What the Service says."""
        return _RANGES[self]


_RANGES: dict[Ranges, tuple[str, ...]] = {
    Ranges.ANY: (),
    Ranges.CLIENT: tuple(plan.INSIDE),
    Ranges.NODE: (*plan.INSIDE, *plan.UNDERLAY),
    Ranges.PODS: tuple(plan.CLUSTER),
    Ranges.ONE_FAMILY: (plan.INSIDE.v4,),
    Ranges.UNREADABLE: ("everybody",),
    Ranges.ANNOTATION: tuple(plan.INSIDE),
    Ranges.EVERYBODY: ("0.0.0.0/0", "::/0"),
}


class Detector(Enum):
    """How the proxy tells this node's pods; ``NOTHING`` is ClusterCIDR without a range."""

    CLUSTER_CIDR = "ClusterCIDR"
    NODE_CIDR = "NodeCIDR"
    BRIDGE = "BridgeInterface"
    PREFIX = "InterfaceNamePrefix"
    NOTHING = "none"


class NodePorts(Enum):
    """Values of ``nodePortAddresses``."""

    PRIMARY = "primary"
    ALL = "all"
    LOCALHOST = "localhost"
    ONE_FAMILY = "0.0.0.0/0"
    SECONDARY = "secondary"
    PRIMARY_AND_SECONDARY = "primary,secondary"
    UNDERLAY = "underlay"
    LOCALHOST_AND_BRIDGE = "localhost,bridge"


class EndpointChains(Enum):
    """When an endpoint has a chain of its own."""

    WHEN_AFFINITY = "WhenAffinity"
    ALWAYS = "Always"


@dataclass(frozen=True, slots=True)
class Settings:
    """One configuration of the proxy."""

    detector: Detector = Detector.CLUSTER_CIDR
    masquerade_all: bool = False
    node_ports: NodePorts = NodePorts.PRIMARY
    endpoint_chains: EndpointChains = EndpointChains.WHEN_AFFINITY

    def __str__(self) -> str:
        everybody = ", masqueradeAll" if self.masquerade_all else ""
        chains = ", endpointChains Always" if self.endpoint_chains is EndpointChains.ALWAYS else ""
        return f"detector {self.detector.value}{everybody}, NodePorts {self.node_ports.value}{chains}"
