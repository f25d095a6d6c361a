"""Which slots of which maps are in use, and which are out of use but still filled."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from nodeproxy.ruleset.mirror import Found, SlotUse, slot_map_number
from nodeproxy.ruleset.names import ENDPOINT_CHAIN_MAP, SLOT_MAPS
from nodeproxy.ruleset.rules import BalancingChain, Target
from nodeproxy.ruleset.slots import CHAIN_MAP_SLOTS, MAP_SLOTS, SlotPool, SlotRange, runs

LONG_AGO = float("-inf")


class Drawn(msgspec.Struct, frozen=True, gc=False):
    """The slots that a chain draws from; ``order``: what they hold, if in another order than the chain has it."""

    chain: str
    use: SlotUse
    order: tuple[Target | str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Freed:
    """Slots that may be emptied now.

    Attributes:
        uses: the slots, but for those of ``maps``.
        maps: names of maps in which nothing is left.
        oldest: since when (monotonic seconds) the first of all of them was out of use; None: there are none.
    """

    uses: tuple[SlotUse, ...]
    maps: tuple[str, ...]
    oldest: float | None


def slot_pool(prefix: str) -> SlotPool:
    """An empty pool of the maps whose names begin with ``prefix``."""
    return SlotPool(CHAIN_MAP_SLOTS if prefix == ENDPOINT_CHAIN_MAP else MAP_SLOTS)


class SlotLedger:
    """Keeps account of the slots of one table."""

    def __init__(self) -> None:
        self._pools = {prefix: slot_pool(prefix) for prefix in SLOT_MAPS}
        self._retired: list[tuple[float, SlotUse]] = []  # and since when it is out of use
        self._beyond: list[SlotUse] = []  # filled by somebody else, behind the end of a map

    def take(self, chain: BalancingChain) -> tuple[SlotUse, int | None]:
        """Take fresh slots for a chain.

        Returns:
            the slots, and how many their map has room for, if the map is new.
        """
        pool = self._pools[chain.slot_maps]
        slots, new = pool.allocate(chain.choices)
        return SlotUse(chain.slot_maps, slots), pool.capacity(slots.number) if new else None

    def room(self, map_name: str) -> int | None:
        """How many slots a map has room for; None: there is no such slot map."""
        known = slot_map_number(map_name)
        if known is None or known[1] not in (pool := self._pools[known[0]]).maps():
            return None
        return pool.capacity(known[1])

    def adopt(
        self, found: Found, chains: Iterable[BalancingChain], now: float, kept: Iterable[str] = ()
    ) -> Mapping[str, Drawn]:
        """Take those slots that a table was found with and that are right for ``chains``; all others are out of use.

        Slots that no chain draws from may be emptied at once, those that one still draws from after a while.

        Args:
            found: the table.
            chains: the chains that want slots.
            now: monotonic seconds.
            kept: names of chains that stay as they are, whatever slots they draw from.

        Returns:
            the slots by chain.
        """
        for map_name, capacity in found.capacities.items():
            if known := slot_map_number(map_name):
                self._pools[known[0]].declare(known[1], capacity)
        drawn: defaultdict[str, list[SlotRange]] = defaultdict(list)
        for use in found.uses.values():
            drawn[use.map_name].append(use.slots)
        wishes = _wishes(found, chains, kept)
        adopted: dict[str, Drawn] = {}
        for map_name, content in found.slots.items():
            known = slot_map_number(map_name)
            if known is None:
                continue
            claimed: set[int] = set()
            for name, use, chain in wishes.get(map_name, ()):
                drawn_from = _drawn(name, use, chain, content)
                if drawn_from is not None and self._pools[use.prefix].claim(use.slots):
                    adopted[name] = drawn_from
                    claimed.update(range(use.slots.offset, use.slots.end))
            end = found.capacities[map_name]
            rest = sorted(content.keys() - claimed)
            self._beyond += [SlotUse(known[0], SlotRange(known[1], slot, 1)) for slot in rest if slot >= end]
            ranges = [range(slots.offset, min(slots.end, end)) for slots in drawn[map_name]] if rest else []
            busy = {slot for each in ranges for slot in each}
            for since, slots in (
                (now, [slot for slot in rest if slot < end and slot in busy]),
                (LONG_AGO, [slot for slot in rest if slot < end and slot not in busy]),
            ):
                self._retired += [(since, SlotUse(known[0], SlotRange(known[1], *run))) for run in runs(slots)]
        for _, use in self._retired:
            self._pools[use.prefix].claim(use.slots)
        return adopted

    def retire(self, uses: Iterable[SlotUse], now: float) -> None:
        """Note that slots are out of use from now (monotonic seconds) on."""
        self._retired += [(now, use) for use in uses]

    def settle(self, began: float, now: float) -> None:
        """Take what is out of use since ``began`` for out of use since ``now``."""
        self._retired = [(now if since == began else since, use) for since, use in self._retired]

    def retired(self) -> Iterator[SlotUse]:
        """Slots that are out of use and not emptied yet."""
        yield from (use for _, use in self._retired)
        yield from self._beyond

    def retired_since(self) -> float | None:
        """Since when the first of the slots that are to be emptied is out of use; None: there are none."""
        return min((since for since, _ in self._retired), default=None)

    def free(self, until: float) -> Freed:
        """Give back the slots that are out of use since ``until`` or longer."""
        due = [(since, use) for since, use in self._retired if since <= until]
        self._retired = [(since, use) for since, use in self._retired if since > until]
        beyond, self._beyond = self._beyond, []
        emptied = {use.map_name for _, use in due if self._pools[use.prefix].release(use.slots)}
        return Freed(
            uses=(*(use for _, use in due if use.map_name not in emptied), *beyond),
            maps=tuple(sorted(emptied)),
            oldest=min((since for since, _ in due), default=None),
        )

    def forget_empty(self) -> Iterator[str]:
        """Forget the maps in which nothing is filled; yields their names."""
        for prefix, pool in self._pools.items():
            for number in pool.forget_empty():
                yield f"{prefix}{number}"

    def taken(self) -> int:
        """How many slots are filled."""
        return sum(pool.taken() for pool in self._pools.values())


def _wishes(
    found: Found, chains: Iterable[BalancingChain], kept: Iterable[str]
) -> Mapping[str, Sequence[tuple[str, SlotUse, BalancingChain | None]]]:
    """Which chain wants which slots, if they hold what it chooses among (None: whatever they hold), for each map.

    By map, so that what only one of them holds is in memory at a time.
    """
    wishes: defaultdict[str, list[tuple[str, SlotUse, BalancingChain | None]]] = defaultdict(list)
    for chain in chains:
        use = found.uses.get(chain.name)
        if use is not None and use.prefix == chain.slot_maps and use.slots.size == chain.choices:
            wishes[use.map_name].append((chain.name, use, chain))
    for name in kept:
        if (staying := found.uses.get(name)) is not None:
            wishes[staying.map_name].append((name, staying, None))
    return wishes


def _drawn(name: str, use: SlotUse, chain: BalancingChain | None, content: Mapping[int, Target | str]) -> Drawn | None:
    """The slots, if they hold what the chain chooses among, in whatever order; None: they do not."""
    if chain is None:
        return Drawn(name, use)
    found = [content[slot] for slot in range(use.slots.offset, use.slots.end) if slot in content]
    wanted = chain.slots
    if found == [*wanted]:
        return Drawn(name, use)
    if len(found) != len(wanted) or Counter(found) != Counter(wanted):
        return None
    return Drawn(name, use, tuple(found))
