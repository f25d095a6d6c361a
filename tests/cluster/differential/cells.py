"""What has to come up: every type with every traffic policy and state of endpoints, once in each round of seeds."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from random import Random

from cluster.differential.states import State

ROUND = 10
"""How many seeds in a row hold every cell: 0 to 9, 10 to 19, …"""


class Kind(Enum):
    """The type of a Service; external IPs make one of their own of ClusterIP."""

    CLUSTER_IP = "ClusterIP"
    EXTERNAL_IP = "ClusterIP with external IPs"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"
    HEADLESS = "headless"
    EXTERNAL_NAME = "ExternalName"

    @property
    def served(self) -> bool:
        """Whether a proxy has anything to do with it."""
        return self not in {Kind.HEADLESS, Kind.EXTERNAL_NAME}

    @property
    def from_outside(self) -> bool:
        """Whether it has an externalTrafficPolicy."""
        return self in {Kind.EXTERNAL_IP, Kind.NODE_PORT, Kind.LOAD_BALANCER}


class Policy(Enum):
    """internalTrafficPolicy, externalTrafficPolicy."""

    CLUSTER = "Cluster"
    LOCAL = "Local"


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of Service, with its traffic policies, and its endpoints' state.

    Attributes:
        kind: its type.
        internal: its internalTrafficPolicy.
        external: its externalTrafficPolicy; Cluster where there is none.
        state: its endpoints.
    """

    kind: Kind
    internal: Policy
    external: Policy
    state: State

    def __str__(self) -> str:
        policies = f"internal {self.internal.value}"
        if self.kind.from_outside:
            policies += f", external {self.external.value}"
        return f"{self.kind.value}, {policies}, endpoints: {self.state.value}"


@cache
def every_cell() -> tuple[Cell, ...]:
    """All of them, in a fixed order."""
    found = []
    for kind in Kind:
        states: Iterable[State] = State if kind.served else (State.NONE, State.LOCAL)
        for state in states:
            for internal in Policy if kind.served else (Policy.CLUSTER,):
                for external in Policy if kind.from_outside else (Policy.CLUSTER,):
                    found.append(Cell(kind, internal, external, state))
    return tuple(found)


def deal(seed: int) -> list[Cell]:
    """The cells of a seed; any two rounds deal them differently."""
    number, place = divmod(seed, ROUND)
    cells = list(every_cell())
    Random(f"round {number}").shuffle(cells)  # noqa: S311 - which seed gets what, nothing secret
    return cells[place::ROUND]


def whole_rounds(seeds: Iterable[int]) -> bool:
    """Whether seeds hold a whole round, so that every cell has to come up."""
    wanted = set(seeds)
    return any(
        all(number * ROUND + place in wanted for place in range(ROUND)) for number in {s // ROUND for s in wanted}
    )
