"""A small cluster whose services change at random, and its table taken through every change in lock step."""

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from nodeproxy.kube.addresses import Family
from nodeproxy.model.frontends import Frontend, FrontendIndex, claims
from nodeproxy.model.service import ServicePort, ServicePortName
from nodeproxy.model.settings import EndpointChains
from nodeproxy.ruleset.diff import BaseAndAddresses, TableState
from nodeproxy.ruleset.mirror import slot_map_number
from nodeproxy.ruleset.operations import Piece
from nodeproxy.ruleset.render import Base, Renderer
from nodeproxy.ruleset.rules import ServiceRules
from unit.ruleset.build import NODE, V4, ep, planned, port, renderer
from unit.ruleset.pretend_kernel import Fates, PretendKernel

BIG = 1030  # endpoints: more than a shared slot map holds


@dataclass(frozen=True)
class Shape:
    """What one service port looks like; ``vip`` and ``external_ip`` are drawn from few, so that services clash."""

    number: int
    endpoints: tuple[int, ...] = ()
    remote: bool = False
    affinity: int = 0
    internal: bool = False
    external: bool = False
    node_port: int = 0
    external_ip: int = 0
    vip: int = 0
    guarded: bool = False
    protocol: str = "TCP"

    def port(self) -> ServicePort:
        """The service port."""
        return port(
            f"ns/svc{self.number}",
            f"172.30.0.{self.number + 1}",
            protocol=self.protocol,  # type: ignore[arg-type]
            node_port=self.node_port,
            external_ips=(f"192.0.2.{self.external_ip}",) if self.external_ip else (),
            load_balancer_vips=(f"192.0.2.{self.vip}",) if self.vip else (),
            source_ranges=("203.0.113.0/24",) if self.guarded else None,
            affinity_seconds=self.affinity,
            internal_policy_local=self.internal,
            external_policy_local=self.external,
        )


@functools.cache
def rules_of(shape: Shape, lost: frozenset[Frontend], endpoint_chains: EndpointChains) -> ServiceRules:
    """The plan of a shape. Endpoints with odd numbers are remote if any is."""
    endpoints = [
        ep(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", "other" if shape.remote and n % 2 else NODE)
        for n in shape.endpoints
    ]
    return planned(shape.port(), *endpoints, lost=lost, endpoint_chains=endpoint_chains)


@functools.cache
def shared_renderer(masquerade_bit: int, everywhere: bool) -> tuple[Renderer, Base]:
    """A renderer and its base; made once, since hundreds of examples need the same."""
    made = renderer(V4, masquerade_bit=masquerade_bit, node_ports_everywhere=everywhere)
    return made, made.base()


@dataclass
class Cluster:
    """What the table should hold."""

    shapes: dict[int, Shape] = field(default_factory=dict)
    endpoint_chains: EndpointChains = "WhenAffinity"
    masquerade_bit: int = 14
    everywhere: bool = False
    node_addresses: tuple[str, ...] = ("192.168.0.2",)
    index: FrontendIndex = field(default_factory=FrontendIndex)
    plans: dict[ServicePortName, ServiceRules] = field(default_factory=dict)
    family: Family = V4

    @property
    def renderer(self) -> Renderer:
        """The renderer of its settings."""
        return shared_renderer(self.masquerade_bit, self.everywhere)[0]

    @property
    def base(self) -> BaseAndAddresses:
        """The base of its settings."""
        return shared_renderer(self.masquerade_bit, self.everywhere)[1], () if self.everywhere else self.node_addresses

    def set(self, shapes: Iterable[Shape | int]) -> dict[ServicePortName, ServiceRules | None]:
        """Take new shapes, or, for a number, no such service any more; what changes in the plans."""
        for shape in shapes:
            old = self.shapes.pop(shape if isinstance(shape, int) else shape.number, None)
            if old is not None and (isinstance(shape, int) or shape.port().name != old.port().name):
                self.index.remove(old.port().name)
            if isinstance(shape, Shape):
                self.shapes[shape.number] = shape
                self.index.update(shape.port().name, claims(shape.port()), "")
        return self.replan()

    def replan(self) -> dict[ServicePortName, ServiceRules | None]:
        """Plan all anew; what changes."""
        plans = {}
        for shape in self.shapes.values():
            name = shape.port().name
            plans[name] = rules_of(shape, self.index.lost(name), self.endpoint_chains)
        changed: dict[ServicePortName, ServiceRules | None] = {}
        for name in sorted({*plans, *self.plans}):
            if plans.get(name) != self.plans.get(name):
                changed[name] = plans.get(name)
        self.plans = plans
        return changed


def leaves(piece: Piece) -> Iterator[Piece]:
    """A piece cut into the smallest transactions that it can be cut into."""
    halves = piece.halves()
    if halves is None:
        yield piece
    else:
        yield from leaves(halves[0])
        yield from leaves(halves[1])


class Table:
    """A table's memory and a pretended kernel, checked against each other after every transaction."""

    def __init__(self, cluster: Cluster, kernel: PretendKernel | None = None) -> None:
        self.kernel = kernel or PretendKernel()
        self.cluster = cluster
        self.state = TableState(self.kernel.found() if kernel else None, cluster.renderer)
        self.now = 100.0

    def change(self, updates: dict[ServicePortName, ServiceRules | None], *, finely: bool = False) -> int:
        """Apply a change; how many transactions it took."""
        self.state.renderer = self.cluster.renderer
        return self.apply(self.state.change(updates, self.now, self.cluster.base), finely=finely)

    def correct(self, *, finely: bool = False) -> int:
        """Correct what was found; how many transactions it took."""
        wanted = dict(sorted(self.cluster.plans.items()))
        return self.apply(self.state.correct(wanted, self.now, self.cluster.base), finely=finely)

    def apply(self, pieces: Iterable[Piece], *, finely: bool = False) -> int:
        """Apply pieces one by one; in between, each frontend must fare as :func:`check_between` says."""
        before, states, count = self.kernel.fates(), [], 0
        for piece in pieces:
            for part in leaves(piece) if finely else [piece]:
                self.kernel.apply(part)
                states.append(self.kernel.fates())
                count += 1
        for fates in states[:-1]:
            check_between(before, fates, states[-1])
        self.check_mirror()
        return count

    def tidy(self, seconds: float = 10.0) -> int:
        """Let time pass, and delete what is due; how many transactions it took."""
        self.now += seconds
        return self.apply(self.state.tidy(self.now))

    def tidy_all(self) -> None:
        """Delete everything that went out of use, whenever it is due."""
        for _ in range(10):
            due = self.state.next_tidy()
            if due is None:
                return
            self.now = max(self.now, due)
            self.apply(self.state.tidy(self.now))
        msg = "there is always something left to tidy"
        raise AssertionError(msg)

    def check_mirror(self) -> None:
        """What is remembered is what is there."""
        mirror = self.state.mirror
        hooks = {name: hook for name, hook in mirror.hooks.items() if hook}
        assert replace(mirror, hooks=hooks) == self.kernel.mirror()

    def check_settled(self) -> None:
        """The table holds what a new one would hold, and nothing else; where slots are may differ."""
        fresh = Table(self.cluster)
        fresh.apply([fresh.state.replace(self.cluster.plans, 0.0, self.cluster.base)])
        assert self.kernel.fates() == fresh.kernel.fates()
        assert set(self.kernel.chains) == set(fresh.kernel.chains)
        assert self.kernel.hooks == fresh.kernel.hooks
        assert self.kernel.elements == fresh.kernel.elements
        for kernel in (self.kernel, fresh.kernel):
            assert all(kernel.slots.values()), "a slot map in which nothing is left goes"
        plain = [
            {name: body for name, body in kernel.containers.items() if not slot_map_number(name)}
            for kernel in (self.kernel, fresh.kernel)
        ]
        assert plain[0] == plain[1]
        slots = sum(len(content) for content in self.kernel.slots.values())
        assert slots == sum(len(content) for content in fresh.kernel.slots.values())
        assert self.state.slots_taken() == slots


def check_between(before: Fates, between: Fates, after: Fates) -> None:
    """Whatever a frontend's packets meet between two transactions, they met it before or will meet it after.

    A frontend that moves to another owner, or goes, may meanwhile lead to new rules of its old owner.
    """
    absent = ("", ())
    for key in {*before, *between, *after}:
        first, now, last = (fates.get(key, absent) for fates in (before, between, after))
        assert now in (first, last) or (now[0] == first[0] != last[0]), key


def started(*shapes: Shape) -> Table:
    """A table that serves these."""
    table = Table(Cluster())
    table.change(table.cluster.set(shapes))
    return table


def settle(table: Table) -> None:
    """Wait until all is tidied up; then the table must be like a new one, and stay as it is."""
    table.tidy_all()
    table.check_settled()
    assert table.change({}) == 0
