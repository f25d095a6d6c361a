"""Clients of Services whose rules change hands: who is to answer them does not change meanwhile."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from netns import addresses as plan
from netns.addresses import FAMILIES, Family, Pair
from netns.flips_model import Fate, Served, accepts
from netns.flips_traffic import Both, Conversations, Traffic
from netns.probe import DEFAULT_TIMEOUT, Answer, Dropped, Flow, Rejected, probe
from netns.servers import Protocol
from netns.world import World

PROTOCOLS: tuple[Protocol, Protocol] = ("TCP", "UDP")


@dataclass(frozen=True, slots=True)
class Row:
    """A destination, who goes there, and what becomes of them, whatever happens.

    Attributes:
        who: the name of a pod or a node, or ``client``.
        to: the destination's addresses.
        port: its port.
        fate: what becomes of it.
        source: the client's addresses; None: its own.
        sticky: whether each client is answered by one endpoint only.
    """

    who: str
    to: Pair
    port: int
    fate: Fate
    source: Pair | None = None
    sticky: bool = False


class SteadyClients(Both):
    """Tries rows over and over, over TCP and UDP and both families, and keeps connections open. For ``with``.

    Args:
        world: the network; node-a has the rules.
        rows: what to try. A long TCP connection is kept to each that serves.
        every: seconds between two attempts at a row over one protocol and family.
    """

    def __init__(
        self,
        world: World,
        rows: Mapping[str, Row],
        every: float = 0.1,
        *,
        protocols: Sequence[Protocol] = PROTOCOLS,
        families: Sequence[Family] = FAMILIES,
    ) -> None:
        self._world = world
        everything = _flows(world, rows, protocols, families)
        self._rows = {key: (row, family) for key, (row, family, _) in everything.items()}
        flows = {key: flow for key, (_, _, flow) in everything.items()}
        serving = {
            key: flow
            for key, flow in flows.items()
            if flow.protocol == "TCP" and isinstance(self._rows[key][0].fate, Served)
        }
        self.traffic = Traffic(flows, every)
        self.long = Conversations(serving)

    def expect_nothing_happened(self, *, rejects_for_drops: bool = False) -> None:
        """After it has ended: every attempt met its fate, sticky clients stayed, and no connection broke.

        Args:
            rejects_for_drops: who is to be dropped may be rejected as well.
        """
        own: dict[Family, set[str]] = {family: self._world.node("node-a").own(family) for family in FAMILIES}
        wrong = []
        for tried in self.traffic.tries:
            row, family = self._rows[tried.name]
            excused = rejects_for_drops and row.fate is Dropped and isinstance(tried.outcome, Rejected)
            if not excused and not accepts(tried.outcome, row.fate, own[family]):
                wrong.append(f"{tried.name}: {tried.outcome}, not {row.fate}")
        assert wrong == [], f"{len(wrong)} of {len(self.traffic.tries)}: {sorted(set(wrong))[:20]}"
        served = defaultdict(set)
        for tried in self.traffic.tries:
            row, family = self._rows[tried.name]
            if row.sticky and isinstance(tried.outcome, Answer):
                client = self.traffic.flows[tried.name]
                served[client.namespace, client.source, client.protocol, family].add(tried.outcome.name)
        assert {client: names for client, names in served.items() if len(names) > 1} == {}
        assert self.long.broken == {}
        assert min(self.long.rounds.values()) >= 10


def expect_fates(world: World, rows: Mapping[str, Row]) -> None:
    """Try each row once over both protocols and families, and expect its fate."""
    dropped = {name: row for name, row in rows.items() if row.fate is Dropped}
    answered = {name: row for name, row in rows.items() if row.fate is not Dropped}
    _expect_fates(world, dropped, DEFAULT_TIMEOUT)
    _expect_fates(world, answered, 5.0)


def _expect_fates(world: World, rows: Mapping[str, Row], timeout: float) -> None:
    tried = _flows(world, rows, PROTOCOLS, FAMILIES)
    outcomes = probe([flow for _, _, flow in tried.values()], timeout)
    own: dict[Family, set[str]] = {family: world.node("node-a").own(family) for family in FAMILIES}
    wrong = [
        f"{name}: {outcome}, not {row.fate}"
        for (name, (row, family, _)), outcome in zip(tried.items(), outcomes, strict=True)
        if not accepts(outcome, row.fate, own[family])
    ]
    assert wrong == []


def _flows(
    world: World, rows: Mapping[str, Row], protocols: Sequence[Protocol], families: Sequence[Family]
) -> dict[str, tuple[Row, Family, Flow]]:
    hosts = {"client": world.client, **world.nodes, **world.pods}
    return {
        f"{name}, {protocol}, IPv{family}": (
            row,
            family,
            Flow(
                hosts[row.who].namespace,
                row.to.of(family),
                row.port,
                protocol,
                row.source and row.source.of(family),
            ),
        )
        for name, row in rows.items()
        for protocol in protocols
        for family in families
    }


def some_addresses(count: int) -> list[Pair]:
    """Addresses that the client has besides its own."""
    return [plan.host(plan.INSIDE, number) for number in range(1, count + 1)]
