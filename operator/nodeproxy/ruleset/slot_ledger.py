"""Which slots of which maps are in use, and which are out of use but still filled."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from nodeproxy.ruleset.mirror import Found, SlotUse, slot_map_number
from nodeproxy.ruleset.names import SLOT_MAPS
from nodeproxy.ruleset.rules import BalancingChain
from nodeproxy.ruleset.slots import SlotPool, SlotRange

LONG_AGO = float("-inf")


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


class SlotLedger:
    """Keeps account of the slots of one table."""

    def __init__(self) -> None:
        self._pools = {prefix: SlotPool() for prefix in SLOT_MAPS}
        self._retired: list[tuple[float, SlotUse]] = []  # and since when it is out of use
        self._beyond: list[SlotUse] = []  # filled by somebody else, behind the end of a map

    def take(self, chain: BalancingChain) -> tuple[SlotUse, int | None]:
        """Take fresh slots for a chain.

        Returns:
            the slots, and how many their map has room for, if the map is new.
        """
        pool = self._pools[chain.slot_maps]
        slots, new = pool.allocate(len(chain.slots))
        return SlotUse(chain.slot_maps, slots), pool.capacity(slots.number) if new else None

    def adopt(
        self, found: Found, chains: Iterable[BalancingChain], now: float, kept: Iterable[str] = ()
    ) -> Mapping[str, SlotUse]:
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
        drawn = {(use.map_name, slot) for use in found.uses.values() for slot in range(use.slots.offset, use.slots.end)}
        for map_name, capacity in found.capacities.items():
            if known := slot_map_number(map_name):
                self._pools[known[0]].declare(known[1], capacity)
        adopted: dict[str, SlotUse] = {}
        for chain in chains:
            use = found.uses.get(chain.name)
            if use is None or use.prefix != chain.slot_maps or use.slots.size != len(chain.slots):
                continue
            content = found.slots.get(use.map_name, {})
            same = all(content.get(use.slots.offset + i) == value for i, value in enumerate(chain.slots))
            if same and self._pools[use.prefix].claim(use.slots):
                adopted[chain.name] = use
        for name in kept:
            if (use := found.uses.get(name)) is not None and self._pools[use.prefix].claim(use.slots):
                adopted[name] = use
        for map_name, content in found.slots.items():
            if known := slot_map_number(map_name):
                end = found.capacities[map_name]
                self._beyond += [SlotUse(known[0], SlotRange(known[1], slot, 1)) for slot in content if slot >= end]
                busy = [slot for slot in content if (map_name, slot) in drawn]
                idle = [slot for slot in content if (map_name, slot) not in drawn]
                self._retired += [(now, use) for use in self._unclaimed(*known, sorted(busy))]
                self._retired += [(LONG_AGO, use) for use in self._unclaimed(*known, sorted(idle))]
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
        emptied = [use.map_name for _, use in due if self._pools[use.prefix].release(use.slots)]
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

    def _unclaimed(self, prefix: str, number: int, filled: Iterable[int]) -> Iterator[SlotUse]:
        """Those filled slots of a map that nobody has claimed, in runs as long as possible; they are claimed now."""
        pool = self._pools[prefix]
        unclaimed = [slot for slot in filled if pool.claim(SlotRange(number, slot, 1))]
        for _, run in groupby(enumerate(unclaimed), key=lambda pair: pair[1] - pair[0]):
            slots = [slot for _, slot in run]
            yield SlotUse(prefix, SlotRange(number, slots[0], len(slots)))
