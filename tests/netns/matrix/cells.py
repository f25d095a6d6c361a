"""Every cell of the matrix, generated, and the rows that tests take them by.

A part of the matrix is a product of axes. What a part leaves out of the full product, it leaves out because the
property in question is not concerned (the ipMode of an address does not depend on hints), never because of its outcome.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from netns.addresses import FAMILIES, Family
from netns.matrix.axes import (
    BASE_SOURCES,
    BASE_STATES,
    BASE_TARGETS,
    DETECTED_SOURCES,
    HINT_STATES,
    RANGED_SOURCES,
    STRAY_TARGETS,
    Detector,
    EndpointChains,
    Kind,
    NodePorts,
    Policy,
    Protocol,
    Ranges,
    Settings,
    Source,
    State,
    Target,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """All that tells one Service of the matrix from another.

    Attributes:
        external: externalTrafficPolicy.
        internal: internalTrafficPolicy.
        state: its endpoints.
        ranges: its source ranges.
        kind: what addresses it has.
    """

    external: Policy
    internal: Policy
    state: State
    ranges: Ranges = Ranges.ANY
    kind: Kind = Kind.EVERYTHING

    def __str__(self) -> str:
        kind = f", {self.kind.value}" if self.kind is not Kind.EVERYTHING else ""
        ranges = f", {self.ranges.value}" if self.ranges is not Ranges.ANY else ""
        policies = f"external {self.external.value}, internal {self.internal.value}"
        return f"{policies}, {self.state.value} endpoints{ranges}{kind}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One question: what becomes of this packet?"""

    settings: Settings
    shape: Shape
    target: Target
    protocol: Protocol
    family: Family
    source: Source

    def __str__(self) -> str:
        return (
            f"from {self.source.value} to {self.target.value} of ({self.shape}) "
            f"over {self.protocol.value} in IPv{self.family}, {self.settings}"
        )


@dataclass(frozen=True, slots=True)
class Row:
    """Cells that one test asserts.

    Attributes:
        name: what they have in common.
        cells: at least one.
    """

    name: str
    cells: tuple[Cell, ...]

    def __str__(self) -> str:
        return self.name


DEFAULT = Settings()
ALWAYS = Settings(endpoint_chains=EndpointChains.ALWAYS)
VARIANTS: tuple[Settings, ...] = (
    # Detectors and node-port addresses do not meet in any rule, so one configuration tries a value of each.
    Settings(Detector.NODE_CIDR, node_ports=NodePorts.ALL),
    Settings(Detector.BRIDGE, node_ports=NodePorts.LOCALHOST),
    Settings(Detector.PREFIX, node_ports=NodePorts.ONE_FAMILY, endpoint_chains=EndpointChains.ALWAYS),
    Settings(Detector.NOTHING, node_ports=NodePorts.SECONDARY),
    Settings(Detector.CLUSTER_CIDR, True, NodePorts.PRIMARY_AND_SECONDARY),
    Settings(Detector.NOTHING, True, NodePorts.UNDERLAY),
    Settings(Detector.BRIDGE, True, NodePorts.LOCALHOST_AND_BRIDGE, EndpointChains.ALWAYS),
)
POLICIES = tuple(product(Policy, Policy))


def base(settings: Settings = DEFAULT) -> Iterator[Cell]:
    """Both policies, every state of the endpoints, every destination, protocol, family and source."""
    for (external, internal), state, *rest in product(
        POLICIES, BASE_STATES, BASE_TARGETS, Protocol, FAMILIES, BASE_SOURCES
    ):
        yield Cell(settings, Shape(external, internal, state), *rest)


def internal_only(settings: Settings = DEFAULT) -> Iterator[Cell]:
    """Services that have nothing but a ClusterIP."""
    for internal, state, *rest in product(Policy, BASE_STATES, (Target.CLUSTER_IP,), Protocol, FAMILIES, BASE_SOURCES):
        yield Cell(settings, Shape(Policy.CLUSTER, internal, state, kind=Kind.CLUSTER_IP), *rest)


def kinds(settings: Settings = DEFAULT) -> Iterator[Cell]:
    """Services of every type, each through all that it has."""
    states = (State.NONE, State.REMOTE, State.LOCAL, State.MIXED)
    for kind in (Kind.EXTERNAL_IP, Kind.NODE_PORT, Kind.PLAIN_VIP):
        for external, state, *rest in product(Policy, states, kind.targets, Protocol, FAMILIES, BASE_SOURCES):
            yield Cell(settings, Shape(external, Policy.CLUSTER, state, kind=kind), *rest)


def strays(settings: Settings = DEFAULT) -> Iterator[Cell]:
    """What no Service has: other ports of its addresses, and a ClusterIP that is nobody's."""
    for policy, state, *rest in product(
        Policy, (State.NONE, State.LOCAL), STRAY_TARGETS, Protocol, FAMILIES, BASE_SOURCES
    ):
        yield Cell(settings, Shape(policy, policy, state), *rest)


def hints() -> Iterator[Cell]:
    """Hints for zones and nodes, under both policies."""
    targets = (Target.CLUSTER_IP, Target.NODE_PORT)
    for (external, internal), state, *rest in product(POLICIES, HINT_STATES, targets, Protocol, FAMILIES, BASE_SOURCES):
        yield Cell(DEFAULT, Shape(external, internal, state), *rest)


def ranges() -> Iterator[Cell]:
    """Source ranges, seen from inside and outside of them, through every address of the Service."""
    states = (State.NONE, State.REMOTE, State.LOCAL)
    targets = (Target.CLUSTER_IP, Target.NODE_PORT, Target.EXTERNAL_IP, Target.VIP)
    for external, state, allowed, *rest in product(Policy, states, Ranges, targets, Protocol, FAMILIES, RANGED_SOURCES):
        if allowed is not Ranges.ANY:
            yield Cell(DEFAULT, Shape(external, Policy.CLUSTER, state, allowed), *rest)


def detection(settings: Settings) -> Iterator[Cell]:
    """Who counts as a pod of this node, and what is masqueraded."""
    states = (State.REMOTE, State.LOCAL, State.MIXED)
    targets = (Target.CLUSTER_IP, Target.VIP)
    for policy, state, *rest in product(Policy, states, targets, Protocol, FAMILIES, DETECTED_SOURCES):
        yield Cell(settings, Shape(policy, policy, state), *rest)


def node_ports(settings: Settings) -> Iterator[Cell]:
    """Which of the node's addresses accept NodePorts."""
    states = (State.NONE, State.REMOTE, State.LOCAL)
    sources = (Source.POD, Source.NODE, Source.OUTSIDE, Source.OTHER_POD)
    targets = tuple(target for target in Target if target.node_port)
    for policy, state, target, protocol, family, source in product(
        Policy, states, targets, Protocol, FAMILIES, sources
    ):
        if target is not Target.NODE_PORT_LOOPBACK or source is Source.NODE:
            yield Cell(settings, Shape(policy, policy, state), target, protocol, family, source)


def _by_shape(part: str, cells: Iterable[Cell]) -> list[Row]:
    """A row for each Service and destination."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(f"{part}: {cell.target.value} of {cell.shape}", []).append(cell)
    return [Row(name, tuple(group)) for name, group in groups.items()]


def _by_settings(part: str, cells: Iterable[Cell]) -> list[Row]:
    """A row for each configuration, destination and source."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(f"{part}: from {cell.source.value} to {cell.target.value}, {cell.settings}", []).append(cell)
    return [Row(name, tuple(group)) for name, group in groups.items()]


def unique(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Cells without repetition, in order."""
    return tuple(dict.fromkeys(cells))


BASE_ROWS = _by_shape("base", base()) + _by_shape("base", internal_only())
CHAIN_ROWS = _by_shape("endpointChains Always", base(ALWAYS)) + _by_shape(
    "endpointChains Always", internal_only(ALWAYS)
)
KIND_ROWS = _by_shape("types", kinds())
STRAY_ROWS = _by_shape("strays", strays())
HINT_ROWS = _by_shape("hints", hints())
RANGE_ROWS = _by_shape("source ranges", ranges())
_known = set(base())
DETECTION_ROWS = _by_settings(
    "local pods",
    (cell for settings in (DEFAULT, *VARIANTS) for cell in detection(settings) if cell not in _known),
)
NODE_PORT_ROWS = _by_settings(
    "NodePort addresses",
    (cell for settings in (DEFAULT, *VARIANTS) for cell in node_ports(settings) if cell not in _known),
)


def every_cell() -> set[Cell]:
    """All cells that there are, whatever row they are in."""
    cells = {*base(), *internal_only(), *base(ALWAYS), *internal_only(ALWAYS), *kinds(), *strays(), *hints(), *ranges()}
    for settings in (DEFAULT, *VARIANTS):
        cells |= {*detection(settings), *node_ports(settings)}
    return cells


def cells_of(settings: Settings) -> tuple[Cell, ...]:
    """All cells that one configuration can answer, in a fixed order."""
    rows = (*BASE_ROWS, *CHAIN_ROWS, *KIND_ROWS, *STRAY_ROWS, *HINT_ROWS, *RANGE_ROWS, *DETECTION_ROWS, *NODE_PORT_ROWS)
    return unique(cell for row in rows for cell in row.cells if cell.settings == settings)
