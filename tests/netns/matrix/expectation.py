"""What becomes of a cell: an oracle, written from the documented behaviour of Services alone.

It knows the axes and the address plan, and nothing of the program under test. Sources: the Kubernetes documentation of
virtual IPs and Service proxies, KEP-2086 (internalTrafficPolicy), KEP-1669 (terminating endpoints),
KEP-1860 (ipMode), KEP-2433 and KEP-4444 (hints), KEP-3866 (nftables), and docs/differences.md.
"""

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from netns import addresses as plan
from netns.addresses import Family
from netns.matrix.axes import (
    HERE,
    Backend,
    Condition,
    Detector,
    NodePorts,
    Policy,
    Ranges,
    Settings,
    Source,
    Target,
)
from netns.matrix.cells import Cell

NODE = "node-a"
"""The node of the proxy under test."""
BALANCER = "router"
"""Who has the addresses of ipMode Proxy, and those of Services where no rule takes the packet, and answers there."""


class Seen(Enum):
    """The source address that an endpoint sees."""

    CLIENT = "the client's address"
    NODE = "the node's address towards it"


@dataclass(frozen=True, slots=True)
class Served:
    """One of the endpoints answers, each of them at times.

    Attributes:
        by: the endpoints, and what each sees.
    """

    by: Mapping[str, Seen]


@dataclass(frozen=True, slots=True)
class Untouched:
    """No rule concerns it: whoever has the address answers, and sees the client's own address."""

    by: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """An ICMP error says "port unreachable", over every protocol."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Nothing comes back."""


Expectation = Served | Untouched | Rejected | Dropped


def expect(cell: Cell) -> Expectation:
    """What becomes of a cell."""
    if cell.target in {Target.PROXY_VIP, Target.VIP_OTHER_PORT, Target.EXTERNAL_IP_OTHER_PORT}:
        return Untouched(BALANCER)
    if cell.target is Target.UNALLOCATED:
        return Dropped()
    if cell.target is Target.OTHER_PORT:
        return Rejected()
    if cell.target.node_port and not accepts_node_ports(cell.settings, cell.target, cell.family):
        return Untouched(NODE)
    if cell.target is Target.VIP and not allowed(cell.shape.ranges, cell.source, cell.family):
        return Dropped()
    if not any(_usable(backend) for backend in cell.shape.state.backends):
        return Rejected()
    if cell.target is Target.CLUSTER_IP:
        chosen = near(cell) if cell.shape.internal is Policy.LOCAL else anywhere(cell)
        masqueraded = cell.settings.masquerade_all or (
            cell.settings.detector is not Detector.NOTHING and not is_pod_here(cell.settings, cell.source)
        )
    elif cell.shape.external is Policy.CLUSTER:
        chosen, masqueraded = anywhere(cell), True
    elif is_pod_here(cell.settings, cell.source):
        chosen, masqueraded = anywhere(cell), False
    elif is_node(cell.source):
        chosen, masqueraded = anywhere(cell), True
    else:
        chosen, masqueraded = near(cell), False
    if not chosen:
        return Dropped()
    return Served({pod: Seen.NODE if masqueraded or _is_itself(cell, pod) else Seen.CLIENT for pod in chosen})


def anywhere(cell: Cell) -> frozenset[str]:
    """The endpoints that policy Cluster chooses from: ready ones, those that hints name, else terminating ones."""
    ready = [backend for backend in cell.shape.state.backends if backend.condition is Condition.READY]
    return _names([backend for backend in ready if _hinted(ready)(backend)]) or _names(
        [backend for backend in cell.shape.state.backends if backend.condition is Condition.DRAINING]
    )


def near(cell: Cell) -> frozenset[str]:
    """The endpoints that policy Local chooses from: ready ones of this node, else its terminating ones."""
    here = [backend for backend in cell.shape.state.backends if backend.local]
    return _names([backend for backend in here if backend.condition is Condition.READY]) or _names(
        [backend for backend in here if backend.condition is Condition.DRAINING]
    )


def is_pod_here(settings: Settings, source: Source) -> bool:
    """Whether the proxy takes the source for a pod of its own."""
    pods = {Source.POD, Source.ENDPOINT}
    match settings.detector:
        case Detector.CLUSTER_CIDR:  # cannot tell one node's pods from another's
            return source in pods | {Source.OTHER_POD}
        case Detector.NODE_CIDR:
            return source in pods
        case Detector.BRIDGE:
            return source in pods | {Source.STRANGER}
        case Detector.PREFIX:
            return source in pods | {Source.STRANGER, Source.STRANGER_PORT}
        case Detector.NOTHING:
            return False


def is_node(source: Source) -> bool:
    """Whether the source is the proxy's own node."""
    return source in {Source.NODE, Source.NODE_AS_VIP}


def allowed(ranges: Ranges, source: Source, family: Family) -> bool:
    """Whether source ranges let a source in.

    A node that has the load balancer's address and dials it may have that very address as source, and is let in when
    its own one would be.
    """
    if ranges is Ranges.ANY:
        return True
    address = ipaddress.ip_address(SOURCE_ADDRESSES[source].of(family))
    networks = [ipaddress.ip_network(text) for text in ranges.texts if "/" in text]
    return any(address in network for network in networks if network.version == family)


SOURCE_ADDRESSES: Mapping[Source, plan.Pair] = {
    Source.POD: plan.pod_address(0, 3),
    Source.ENDPOINT: plan.pod_address(0, 1),
    Source.NODE: plan.node_address(0),
    Source.NODE_AS_VIP: plan.node_address(0),
    Source.OUTSIDE: plan.host(plan.INSIDE, 5),
    Source.OUTSIDE_TOO: plan.host(plan.OUTSIDE, 5),
    Source.OTHER_POD: plan.pod_address(2, 1),
    Source.STRANGER: plan.host(plan.OUTSIDE, 77),
    Source.STRANGER_PORT: plan.host(plan.OUTSIDE, 78),
}
"""The addresses by which ranges know the sources."""


def accepts_node_ports(settings: Settings, target: Target, family: Family) -> bool:
    """Whether an address of the node accepts NodePorts; loopback never does."""
    every = {Target.NODE_PORT, Target.NODE_PORT_SECONDARY, Target.NODE_PORT_BRIDGE}
    match settings.node_ports:
        case NodePorts.PRIMARY:
            return target is Target.NODE_PORT
        case NodePorts.ALL:
            return target in every
        case NodePorts.LOCALHOST:
            return False
        case NodePorts.ONE_FAMILY:
            return family == 4 and target in every
        case NodePorts.SECONDARY:
            return target is Target.NODE_PORT_SECONDARY
        case NodePorts.PRIMARY_AND_SECONDARY | NodePorts.UNDERLAY:
            return target in {Target.NODE_PORT, Target.NODE_PORT_SECONDARY}
        case NodePorts.LOCALHOST_AND_BRIDGE:
            return target is Target.NODE_PORT_BRIDGE


def _usable(backend: Backend) -> bool:
    return backend.condition in {Condition.READY, Condition.DRAINING}


def _names(backends: list[Backend]) -> frozenset[str]:
    return frozenset(backend.pod for backend in backends)


def _hinted(ready: list[Backend]) -> Callable[[Backend], bool]:
    """Which of the ready endpoints hints leave: those for the node, else those for its zone, else all."""
    if all(backend.nodes for backend in ready) and any(NODE in backend.nodes for backend in ready):
        return lambda backend: NODE in backend.nodes
    if all(backend.zones for backend in ready) and any(HERE in backend.zones for backend in ready):
        return lambda backend: HERE in backend.zones
    return lambda backend: True


def _is_itself(cell: Cell, pod: str) -> bool:
    """Whether the source is the endpoint: then it must not see its own address, or it would answer itself."""
    return cell.source is Source.ENDPOINT and pod == "pod-a1"
