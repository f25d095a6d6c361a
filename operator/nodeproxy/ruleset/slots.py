"""Slots of the shared maps that load balancing picks from.

A service port with N ≥ 2 endpoints owns N consecutive slots of one map; its rule draws a number below N and adds its
offset. Maps hold up to 1,024 slots and are shared by many service ports; one with more endpoints has a map of its own.
Sharing is what makes loading linear: a kernel that binds a map walks what is there, so a map a service is quadratic.

A pool only keeps account: what the slots hold is known by who owns them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import msgspec

MAP_SLOTS = 1024
"""Slots of a shared map."""
CHAIN_MAP_SLOTS = 128
"""Slots of a shared map of chains.

To see that no chain leads back to itself, the kernel follows every element of such a map for each rule that draws from
it (``nft_chain_validate``, Linux 6.18), after each change of rules: at 1,024 that takes a second for 10,000 Services.
"""


class SlotRange(msgspec.Struct, frozen=True, gc=False):
    """``size`` consecutive slots from ``offset`` on, in the map with number ``number``."""

    number: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        """The first slot behind them."""
        return self.offset + self.size


@dataclass(slots=True)
class _Map:
    """One map: which slots are taken (bit i: slot i), and an upper bound of the longest free run."""

    capacity: int
    longest: int
    taken: int = 0


class SlotPool:
    """The slot maps of one kind in one table.

    Args:
        shared: how many slots a map has that is shared; whoever wants more gets a map of its own.
    """

    def __init__(self, shared: int = MAP_SLOTS) -> None:
        self._shared = shared
        self._maps: dict[int, _Map] = {}
        self._next = 0

    def allocate(self, size: int) -> tuple[SlotRange, bool]:
        """Take ``size`` consecutive free slots.

        Returns:
            the slots, and whether their map is new.

        Raises:
            ValueError: ``size`` is not positive.
        """
        if size < 1:
            msg = f"cannot allocate {size} slots"
            raise ValueError(msg)
        if size <= self._shared:
            # Newest first: while loading, only the newest has room.
            for index in reversed(self._maps):
                slot_map = self._maps[index]
                if slot_map.longest < size or slot_map.capacity > self._shared:
                    continue
                offset = _first_run(~slot_map.taken & ((1 << slot_map.capacity) - 1), size)
                if offset is None:
                    slot_map.longest = size - 1
                    continue
                found = SlotRange(index, offset, size)
                self._take(found)
                return found, False
        index = self._next
        self._open(index, max(size, self._shared))
        found = SlotRange(index, 0, size)
        self._take(found)
        return found, True

    def declare(self, index: int, capacity: int) -> None:
        """A map that exists already, with nothing taken in it yet."""
        self._open(index, capacity)

    def forget_empty(self) -> list[int]:
        """Numbers of the maps in which nothing is taken; the pool forgets them."""
        empty = [index for index, slot_map in self._maps.items() if not slot_map.taken]
        for index in empty:
            del self._maps[index]
        return empty

    def claim(self, slots: SlotRange) -> bool:
        """Take exactly these slots of a map, if the map exists and all of them are free."""
        slot_map = self._maps.get(slots.number)
        if slot_map is None or slots.end > slot_map.capacity or slot_map.taken & _mask(slots):
            return False
        self._take(slots)
        return True

    def release(self, slots: SlotRange) -> bool:
        """Give slots back.

        Returns:
            whether the map is empty now; the pool has forgotten it then, and it should be deleted.

        Raises:
            KeyError: they were not taken.
        """
        slot_map = self._maps.get(slots.number)
        mask = _mask(slots)
        if slot_map is None or slot_map.taken & mask != mask:
            msg = f"{slots!r} is not taken"
            raise KeyError(msg)
        slot_map.taken &= ~mask
        slot_map.longest = slot_map.capacity
        if slot_map.taken:
            return False
        del self._maps[slots.number]
        return True

    def maps(self) -> frozenset[int]:
        """Numbers of the maps that exist."""
        return frozenset(self._maps)

    def capacity(self, index: int) -> int:
        """How many slots a map has room for."""
        return self._maps[index].capacity

    def taken(self) -> int:
        """How many slots are taken in all maps."""
        return sum(slot_map.taken.bit_count() for slot_map in self._maps.values())

    def _open(self, index: int, capacity: int) -> None:
        self._maps[index] = _Map(capacity, longest=capacity)
        self._next = max(self._next, index + 1)

    def _take(self, slots: SlotRange) -> None:
        self._maps[slots.number].taken |= _mask(slots)


def runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First number and length of each run of consecutive numbers; ``numbers`` in order."""
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        yield found[0], len(found)


def _mask(slots: SlotRange) -> int:
    return ((1 << slots.size) - 1) << slots.offset


def _first_run(free: int, size: int) -> int | None:
    """The lowest bit from which ``size`` consecutive bits of ``free`` are set."""
    # Doubling: after each step, bit i says that `have` bits from i on are free.
    have = 1
    while free and have < size:
        step = min(have, size - have)
        free &= free >> step
        have += step
    return (free & -free).bit_length() - 1 if free else None
