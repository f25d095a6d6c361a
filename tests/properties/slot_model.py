"""Who has which slot, kept account of in another way than the product's: one entry a slot."""

from collections.abc import Hashable, Iterable, Iterator
from itertools import pairwise

from nodeproxy.ruleset.slots import MAP_SLOTS, SlotRange

Cell = tuple[str, int]
"""A map's name and a slot."""


def cells(map_name: str, slots: SlotRange) -> Iterator[Cell]:
    """The slots of a range, one by one."""
    return ((map_name, slot) for slot in range(slots.offset, slots.end))


class Cells:
    """Which slot belongs to whom.

    Attributes:
        owners: the owner of each slot that has one.
        sizes: how many slots each map has.
    """

    def __init__(self) -> None:
        self.owners: dict[Cell, Hashable] = {}
        self.sizes: dict[str, int] = {}

    def take(self, owner: Hashable, wanted: Iterable[Cell]) -> None:
        """Slots get an owner; none had one."""
        for cell in wanted:
            assert cell not in self.owners, f"{cell} is {self.owners[cell]}'s, and was given to {owner}"
            assert 0 <= cell[1] < self.sizes[cell[0]], f"{cell} is beyond the end of its map"
            self.owners[cell] = owner

    def leave(self, owner: Hashable, left: Iterable[Cell]) -> None:
        """Slots lose their owner."""
        for cell in left:
            assert self.owners.pop(cell) == owner

    def maps(self) -> set[str]:
        """The maps in which somebody has a slot."""
        return {map_name for map_name, _ in self.owners}

    def longest_gap(self) -> int:
        """The most consecutive free slots that there are in a map that may be shared."""
        found = 0
        for map_name, size in self.sizes.items():
            if size <= MAP_SLOTS:
                taken = sorted(slot for name, slot in self.owners if name == map_name)
                found = max(found, *(after - before - 1 for before, after in pairwise([-1, *taken, size])))
        return found
