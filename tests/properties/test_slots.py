"""Slots through ten thousand random changes: none is given twice, none is lost, none leads to another Service."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.readback import read_back
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.objects import Protocol
from nodeproxy.model.service import ServicePortName
from nodeproxy.ruleset.diff import BaseAndAddresses, TableState
from nodeproxy.ruleset.mirror import Found, SlotUse
from nodeproxy.ruleset.names import SLOT_MAPS
from nodeproxy.ruleset.operations import AddContainer, FillSlots, FreeSlots, Piece, RemoveContainer
from nodeproxy.ruleset.rules import BalancingChain, ServiceRules, Target
from nodeproxy.ruleset.slot_ledger import SlotLedger
from nodeproxy.ruleset.slots import MAP_SLOTS, SlotPool, SlotRange
from unit.ruleset.build import NODE_ADDRESS, V4, ep, planned, port, renderer
from unit.ruleset.pretend_kernel import PretendKernel

from .profiles import FACTOR
from .slot_model import Cell, Cells, cells

CHANGES = 10_000 * FACTOR
FULL_CHECK = 500  # changes between two looks at everything
PHASE = 700  # changes of one kind: then maps are filled, riddled with holes, or outgrown
PHASES = ("fill", "punch", "grow", "mix")


def phase(step: int) -> str:
    """What kind of change is frequent at this step."""
    return PHASES[step // PHASE % len(PHASES)]


def size_of(chance: random.Random) -> int:
    """A number of endpoints: mostly few, at times many, now and then more than a shared map holds."""
    roll = chance.random()
    if roll < 0.9:
        return chance.choice([2, 2, 2, 3, 3, 4, 5, 10])
    if roll < 0.99:
        return chance.randint(11, 300)
    return chance.choice([MAP_SLOTS - 1, MAP_SLOTS, MAP_SLOTS + 1, 1500])


# --- the pool --------------------------------------------------------------------------------------------------------


@dataclass
class _Pool:
    """A pool and what was taken from it."""

    pool: SlotPool = field(default_factory=SlotPool)
    model: Cells = field(default_factory=Cells)
    held: list[SlotRange] = field(default_factory=list)
    retired_numbers: set[int] = field(default_factory=set)

    def allocate(self, size: int) -> None:
        slots, new = self.pool.allocate(size)
        name = str(slots.number)
        assert slots.size == size
        assert new == (name not in self.model.sizes)
        if new:
            assert slots.number not in self.retired_numbers, "the kernel may still hold a map of that number"
            assert size > MAP_SLOTS or self.model.longest_gap() < size, "there was room"
            self.model.sizes[name] = self.pool.capacity(slots.number)
        assert size <= MAP_SLOTS or new, "more than a shared map holds gets a map of its own"
        self.model.take(slots, cells(name, slots))
        self.held.append(slots)

    def release(self, slots: SlotRange) -> None:
        name = str(slots.number)
        emptied = self.pool.release(slots)
        self.model.leave(slots, cells(name, slots))
        self.held.remove(slots)
        if emptied:
            del self.model.sizes[name]
            self.retired_numbers.add(slots.number)
            assert name not in self.model.maps()

    def check(self) -> None:
        assert self.pool.taken() == len(self.model.owners)
        assert {str(number) for number in self.pool.maps()} == self.model.maps() == set(self.model.sizes)


def test_pool_gives_no_slot_twice_and_loses_none_through_ten_thousand_changes(chance: random.Random) -> None:
    """Filled, riddled with holes, outgrown: and a new map is only begun where no gap is long enough."""
    found = _Pool()
    for step in range(CHANGES):
        kind = phase(step)
        some = found.held[chance.randrange(len(found.held))] if found.held else None
        if some is None or (kind == "fill" and len(found.held) < 600 and chance.random() < 0.8):
            found.allocate(size_of(chance))
        elif kind == "grow":
            found.allocate(min(some.size + chance.randint(1, 3), 2000))
            found.release(some)  # as in a table: the new ones first
        elif kind == "mix" and chance.random() < 0.5:
            free = not any(cell in found.model.owners for cell in cells(str(some.number), some))
            assert found.pool.claim(some) == free
            found.allocate(size_of(chance))
        else:
            found.release(some)
        if step % FULL_CHECK == 0:
            found.check()
    found.check()
    for slots in list(found.held):
        found.release(slots)
    assert found.pool.taken() == 0
    assert found.pool.maps() == frozenset()


# --- the ledger ------------------------------------------------------------------------------------------------------


def test_ledger_frees_each_slot_once_and_not_before_its_time_through_ten_thousand_changes(
    chance: random.Random,
) -> None:
    ledger, model = SlotLedger(), Cells()
    held: list[SlotUse] = []
    retired: list[tuple[float, SlotUse]] = []
    now = 0.0

    def free(until: float) -> None:
        due = [(since, use) for since, use in retired if since <= until]
        freed = ledger.free(until)
        gone = {cell for use in freed.uses for cell in cells(use.map_name, use.slots)}
        left = {cell for _, use in due for cell in cells(use.map_name, use.slots)}
        model.leave("retired", left)
        assert gone == {cell for cell in left if cell[0] not in freed.maps}
        assert set(freed.maps) == set(model.sizes) - model.maps()
        assert freed.oldest == min((since for since, _ in due), default=None)
        for name in freed.maps:
            del model.sizes[name]
        retired[:] = [(since, use) for since, use in retired if since > until]

    def retire(use: SlotUse) -> None:
        ledger.retire([use], now)
        held.remove(use)
        model.leave(use, cells(use.map_name, use.slots))
        model.take("retired", cells(use.map_name, use.slots))
        retired.append((now, use))

    for step in range(CHANGES):
        now += chance.random() / 10
        if held and (len(held) > 400 or chance.random() < {"fill": 0.2, "punch": 0.9}.get(phase(step), 0.5)):
            retire(held[chance.randrange(len(held))])
        else:
            size, prefix = size_of(chance), chance.choice(SLOT_MAPS)
            protocol = prefix.split("-")[1]
            chain = (
                BalancingChain("x", "tcp", chains=("y",) * size)
                if protocol == "chains"
                else BalancingChain.of_targets("x", protocol, (Target("10.0.0.1", 80),) * size)
            )
            use, capacity = ledger.take(chain)
            assert (use.prefix, use.slots.size) == (prefix, size)
            if capacity is not None:
                model.sizes[use.map_name] = capacity
            model.take(use, cells(use.map_name, use.slots))
            held.append(use)
        if chance.random() < 0.1:
            free(now - 1.0)
        assert ledger.retired_since() == (retired[0][0] if retired else None)
        if step % FULL_CHECK == 0:
            assert ledger.taken() == len(model.owners)
    while held:
        retire(held[-1])
    free(now)
    assert (ledger.taken(), ledger.retired_since(), model.owners, model.sizes) == (0, None, {}, {})


# --- the table -------------------------------------------------------------------------------------------------------

PROTOCOLS: tuple[Protocol, ...] = ("TCP", "TCP", "TCP", "UDP", "SCTP")


class _Table:
    """A table of many Services, of which each has endpoints that no other has.

    Attributes:
        kernel: what its transactions are applied to; also the real kernel, where there is an ``nft``.
        model: which Service has which slot, as the kernel's rules say.
        plans: what the table should hold.
        uses: the slots of each Service.
    """

    def __init__(self, family: Family, chance: random.Random, *, services: int) -> None:
        self.family = family
        self.chance = chance
        self.services = services
        self.kernel = PretendKernel()
        self.renderer = renderer(family)
        self.base: BaseAndAddresses = (self.renderer.base(), (NODE_ADDRESS[family],))
        self.state = TableState(None, self.renderer)
        self.now = 100.0
        self.model = Cells()
        self.plans: dict[ServicePortName, ServiceRules] = {}
        self.numbers: dict[ServicePortName, int] = {}
        self.uses: dict[ServicePortName, set[Cell]] = {}
        self._fresh = 0
        self.nft: Nft | None = None

    def address(self, number: int, index: int) -> str:
        """An address that says which Service it is of."""
        if self.family is V4:
            return f"10.{number}.{index >> 8 & 255}.{index & 255}"
        return f"fd00:{number:x}::1:{index & 0xFFFF:x}"

    def plan(self, number: int, size: int, begin: int) -> ServiceRules:
        """The rules of a Service with ``size`` endpoints; protocol and kind go with its number."""
        cluster_ip = f"172.30.0.{number}" if self.family is V4 else f"fd00:172:30::{number:x}"
        some = port(f"ns/svc{number}", cluster_ip, protocol=PROTOCOLS[number % len(PROTOCOLS)])
        pods = [ep(self.address(number, begin + index)) for index in range(size)]
        always = number % 8 == 0
        return planned(some, *pods, endpoint_chains="Always" if always else "WhenAffinity")

    def random_change(self, step: int) -> dict[ServicePortName, ServiceRules | None]:
        """New endpoints for a Service, some more, some fewer, or the end of it."""
        chance, kind = self.chance, phase(step)
        number = chance.randint(1, self.services)
        name = self.plan(number, 0, 0).name
        self.numbers[name] = number
        has = self.plans.get(name)
        if has is not None and chance.random() < {"punch": 0.6, "fill": 0.05}.get(kind, 0.15):
            return {name: None}
        size = min(size_of(chance), 6 if number % 8 == 0 else 2000)
        if has is not None and kind == "grow":
            size = sum(len(chain.slots) for chain in has.balancing()) + chance.randint(1, 4)
        if chance.random() < 0.1:
            size = chance.choice([0, 1])
        self._fresh = (self._fresh + chance.randint(0, 50)) % 30_000
        return {name: self.plan(number, size, self._fresh)}

    def change(self, updates: dict[ServicePortName, ServiceRules | None]) -> None:
        """Apply a change, and look at all that it touched."""
        self.apply(self.state.change(updates, self.now, self.base))
        for name, rules in updates.items():
            if rules is None:
                self.plans.pop(name, None)
            else:
                self.plans[name] = rules
            self.model.leave(name, self.uses.pop(name, set()))
        for name in updates:
            self.uses[name] = set(self._drawn(name))
            self.model.take(name, self.uses[name])

    def _drawn(self, name: ServicePortName) -> Iterator[Cell]:
        """The slots that the kernel's rules of a Service draw from; each leads to that Service's endpoint."""
        found = self.kernel.found()
        rules = self.plans.get(name)
        for chain in rules.balancing() if rules else ():
            if not chain.slots:
                assert chain.name not in found.uses
                continue
            use = found.uses[chain.name]
            drawn = list(cells(use.map_name, use.slots))
            assert len(set(drawn)) == len(drawn)
            content = found.slots[use.map_name]
            assert sorted((content[slot] for _, slot in drawn), key=str) == sorted(chain.slots, key=str)
            for _, slot in drawn:
                self._check_owner(name, content[slot])
            yield from drawn

    def _check_owner(self, name: ServicePortName, value: Target | str) -> None:
        number = self.numbers[name]
        start = f"10.{number}." if self.family is V4 else f"fd00:{number:x}:"
        if isinstance(value, Target):
            assert value.address.startswith(start)
        else:
            assert f"/svc{number}/" in value
            (rule,) = self.kernel.chains[value]
            assert start in rule.text

    def apply(self, pieces: Iterator[Piece]) -> None:
        """Apply pieces; a slot that a rule draws from is written and emptied on behalf of its owner only."""
        for piece in pieces:
            for operation in piece.operations():
                match operation:
                    case AddContainer() if operation.name.startswith("endpoint"):
                        self.model.sizes[operation.name] = int(operation.body.rpartition("size ")[2])
                    case FillSlots():
                        self._untouched(operation.map_name, operation.offset, len(operation.values), operation.owner)
                    case FreeSlots():
                        self._untouched(operation.map_name, operation.offset, operation.size, operation.owner)
                    case RemoveContainer() if operation.name.startswith("endpoint"):
                        del self.model.sizes[operation.name]
                        assert operation.name not in self.model.maps()
                    case _:
                        pass
            if self.nft is not None:
                self.nft.run(self.renderer.transaction(piece.operations(), self.state.declared))
            self.kernel.apply(piece)

    def _untouched(self, map_name: str, offset: int, size: int, by: str) -> None:
        for slot in range(offset, offset + size):
            owner = self.model.owners.get((map_name, slot))
            assert owner is None or str(owner) == by, f"a slot of {owner} is written or emptied for {by or 'nobody'}"

    def restart(self) -> None:
        """Another run finds the table as it is: it takes over all slots in use, where they are."""
        self.state = TableState(self.kernel.found(), self.renderer)
        self.apply(self.state.correct(dict(sorted(self.plans.items())), self.now, self.base))
        for name, used in self.uses.items():
            assert set(self._drawn(name)) == used

    def tidy(self, seconds: float) -> None:
        """Time passes; what is due goes."""
        self.now += seconds
        self.apply(self.state.tidy(self.now))

    def tidy_all(self) -> None:
        """All that is out of use goes."""
        for _ in range(100):  # as many as there were moments at which something went out of use, within two seconds
            due = self.state.next_tidy()
            if due is None:
                return
            self.tidy(max(0.0, due - self.now) + 0.001)
        raise AssertionError("there is always something left")

    def check_all(self) -> None:
        """Look at each slot of each map, after all that is out of use has gone."""
        self.tidy_all()
        found = self.kernel.found()
        for name in self.plans:
            assert set(self._drawn(name)) == self.uses[name]
        self.check_found(found)
        assert self.state.slots_taken() == len(self.model.owners)

    def check_found(self, found: Found) -> None:
        """What is filled in a tidied table is what somebody draws from, map by map."""
        filled = {(map_name, slot) for map_name, content in found.slots.items() for slot in content}
        assert filled == set(self.model.owners)
        assert set(found.slots) == self.model.maps()
        assert found.capacities == self.model.sizes


def test_no_slot_of_a_table_is_shared_lost_or_wrong_through_ten_thousand_changes(chance: random.Random) -> None:
    """The rules of each changed Service draw from its own endpoints, each once, and nobody else's slots are touched."""
    table = _Table(V4, chance, services=60)
    for step in range(CHANGES):
        table.change(table.random_change(step))
        if chance.random() < 0.3:
            table.tidy(chance.choice([0.2, 0.9, 1.5]))
        if step % FULL_CHECK == FULL_CHECK // 2:
            table.restart()
        if step % FULL_CHECK == FULL_CHECK - 1:
            table.check_all()
    table.change(dict.fromkeys(table.plans))
    table.check_all()
    assert table.kernel.slots == {}


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("family", Family, ids=lambda family: family.label)
def test_real_maps_hold_each_slot_as_planned_through_hundreds_of_changes(family: Family, chance: random.Random) -> None:
    """After each change all slot maps are read back."""
    table = _Table(family, chance, services=25)
    table.nft = Nft()
    for step in range(150 * FACTOR):
        table.change(table.random_change(step * (PHASE // 25)))
        if chance.random() < 0.3:
            table.tidy(chance.choice([0.2, 0.9, 1.5]))
        if step % 50 == 49:
            table.check_all()
        found = read_back(family, table.base[0])
        assert found is not None
        pretended, slots = table.kernel.found(), dict(found.slots)  # read from the dump at each look, so look once
        assert (slots, found.uses, found.capacities) == (pretended.slots, pretended.uses, pretended.capacities)
        for name, used in table.uses.items():
            for map_name, slot in used:
                table._check_owner(name, slots[map_name][slot])
    table.change(dict.fromkeys(table.plans))
    table.tidy_all()
    found = read_back(family, table.base[0])
    assert found is not None
    assert found.slots == {}
