"""Ways to Services, and what becomes of those who take them: awaited for a while, and then it has to stay so."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from netns.addresses import FAMILIES, Family, Pair
from netns.flips_model import Fate, Served, accepts
from netns.matrix.tracking import forget_connections
from netns.probe import Answer, Dropped, Flow, probe
from netns.servers import Protocol
from netns.world import Host, Node, Pod, World

PROTOCOLS: tuple[Protocol, Protocol] = ("TCP", "UDP")
TIMES = 8
"""How often each way is taken in a round."""
WITHIN = 10.0
"""Seconds after which everything has to be right."""
STAYS = 0.5
"""Seconds for which it has to stay right, at least."""
_DROPPED, _ANSWERED = 0.4, 1.5  # seconds that are waited for nothing, and for an answer
_PAUSE = 0.05


@dataclass(frozen=True, eq=False, slots=True)
class Way:
    """A way to a Service.

    Attributes:
        who: who takes it.
        to: where to, in both families.
        port: the port there.
        fate: what becomes of those who take it.
        through: the node whose rules they meet.
        protocols: over which protocols.
        families: in which families.
    """

    who: Host
    to: Pair
    port: int
    fate: Fate
    through: Node
    protocols: Sequence[Protocol] = PROTOCOLS
    families: Sequence[Family] = FAMILIES

    def __str__(self) -> str:
        return f"{self.who.name} to {self.to.v4}:{self.port} through {self.through.name}"


def from_pods(world: World, to: Pair, port: int, fate: Fate, **more: Sequence[Protocol]) -> list[Way]:
    """From a bystander on each node."""
    return [Way(pod, to, port, fate, pod.node, **more) for pod in bystanders(world).values()]


def from_nodes(world: World, to: Pair, port: int, fate: Fate, **more: Sequence[Protocol]) -> list[Way]:
    """From each node itself."""
    return [Way(node, to, port, fate, node, **more) for node in world.nodes.values()]


def to_nodes(world: World, port: int, fates: Fate | Mapping[str, Fate], **more: Sequence[Protocol]) -> list[Way]:
    """From outside to a port of each node.

    Args:
        world: the network.
        port: the node port.
        fates: one for all nodes, or by the node's name.
        more: other fields of the ways.
    """
    return [
        Way(world.client, node.addresses, port, fates[name] if isinstance(fates, Mapping) else fates, node, **more)
        for name, node in world.nodes.items()
    ]


def bystanders(world: World) -> dict[str, Pod]:
    """The pod of each node that is never behind a Service."""
    return {name: next(iter(node.pods.values())) for name, node in world.nodes.items()}


def expect(world: World, ways: Iterable[Way], within: float = WITHIN, *, forget: bool = True) -> None:
    """Take the ways until all of them end as they should, and expect that to stay so.

    Where some are to answer, all of them do, and nobody else.

    Args:
        world: the network.
        ways: the ways.
        within: seconds.
        forget: whether nodes forget their connections before each round: else whoever happens to use a port again, in
            particular over UDP, goes where the last one went. It breaks the connections of others.

    Raises:
        AssertionError: something is still wrong after ``within`` seconds, or is wrong again after it was right.
    """
    ways = list(ways)
    deadline = time.monotonic() + within
    answered: dict[Way, set[str]] = defaultdict(set)
    rounds = 0
    while True:
        wrong, names = _round(world, ways, forget=forget)
        rounds += 1
        if wrong:
            answered.clear()
        for way, some in names.items():
            answered[way] |= some
        wrong += [
            f"{way}: none of {rounds} rounds chose {sorted(idle)}" for way in ways if (idle := _idle(way, answered))
        ]
        if not wrong:
            break
        assert time.monotonic() < deadline, f"after {within:.0f} s: {len(wrong)} wrong: {wrong[:8]}"
        time.sleep(_PAUSE)
    expect_still(world, ways, forget=forget)


def expect_still(world: World, ways: Iterable[Way], *, forget: bool = True) -> None:
    """Take the ways for a while, and expect that all of them end as they should, each time.

    Raises:
        AssertionError: something is wrong.
    """
    ways = list(ways)
    began = time.monotonic()
    while time.monotonic() < began + STAYS:
        time.sleep(_PAUSE)
        wrong, _ = _round(world, ways, forget=forget)
        assert wrong == [], f"{time.monotonic() - began:.1f} s after all was right, {len(wrong)} are wrong: {wrong[:8]}"


def _idle(way: Way, answered: Mapping[Way, set[str]]) -> frozenset[str]:
    """Who is to answer, and has not yet."""
    return way.fate.names - answered.get(way, set()) if isinstance(way.fate, Served) else frozenset()


def _round(world: World, ways: Iterable[Way], *, forget: bool) -> tuple[list[str], dict[Way, set[str]]]:
    """What went wrong, and who answered."""
    for node in world.nodes.values() if forget else ():
        forget_connections(node.namespace)
    wrong: list[str] = []
    names: dict[Way, set[str]] = {}
    groups: dict[bool, list[Way]] = {False: [], True: []}
    for way in ways:
        groups[way.fate is Dropped].append(way)
    for dropped, some in groups.items():
        flows = [
            (way, family, Flow(way.who.namespace, way.to.of(family), way.port, protocol))
            for way in some
            for protocol in way.protocols
            for family in way.families
            for _ in range(TIMES if isinstance(way.fate, Served) else 1)
        ]
        outcomes = probe([flow for _, _, flow in flows], _DROPPED if dropped else _ANSWERED)
        for (way, family, flow), outcome in zip(flows, outcomes, strict=True):
            if not accepts(outcome, way.fate, way.through.own(family)):
                wrong.append(f"{way} over {flow.protocol}/IPv{family}: {outcome}, not {way.fate}")
            elif isinstance(outcome, Answer):
                names.setdefault(way, set()).add(outcome.name)
    return wrong, names
