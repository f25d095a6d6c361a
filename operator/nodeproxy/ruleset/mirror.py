"""What the kernel's table holds, as far as this program compares it: remembered after a commit, or read back."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from nodeproxy.ruleset.names import SLOT_MAPS
from nodeproxy.ruleset.rules import ElementKey, Target
from nodeproxy.ruleset.slots import SlotRange

FOREIGN = "?"
"""Stands for a rule that this program did not write."""


@dataclass(slots=True)
class Mirror:
    """The table's content.

    Attributes:
        chains: the digests of its rules in order, joined, for each chain; "" for an empty one.
        hooks: the declarations of base chains.
        containers: the declared bodies of sets and maps, affinity sets left out.
        kinds: ``set`` or ``map`` for each container, affinity sets included.
        affinity: the timeout in seconds of each affinity set.
        elements: key to verdict (None in sets) for each container of dispatch elements.
    """

    chains: dict[str, str] = field(default_factory=dict)
    hooks: dict[str, str] = field(default_factory=dict)
    containers: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    affinity: dict[str, int] = field(default_factory=dict)
    elements: dict[str, dict[ElementKey, str | None]] = field(default_factory=dict)

    def forget_container(self, name: str) -> str:
        """Take a set or map out, which must be there; returns whether it was a ``set`` or a ``map``."""
        self.containers.pop(name, None)
        self.affinity.pop(name, None)
        self.elements.pop(name, None)
        return self.kinds.pop(name)


class SlotUse(msgspec.Struct, frozen=True, gc=False):
    """Slots that a chain's rule draws from: in which kind of map, and where."""

    prefix: str
    slots: SlotRange

    @property
    def map_name(self) -> str:
        """The map's name."""
        return f"{self.prefix}{self.slots.number}"


@dataclass(slots=True)
class Found:
    """A table that an earlier run left, as read back from the kernel.

    Attributes:
        mirror: what it holds.
        uses: the slots that each balancing chain draws from.
        slots: what each slot map holds, by slot.
        capacities: how many slots each slot map has room for.
    """

    mirror: Mirror
    uses: dict[str, SlotUse] = field(default_factory=dict)
    slots: Mapping[str, Mapping[int, Target | str]] = field(default_factory=dict)
    capacities: dict[str, int] = field(default_factory=dict)


def slot_map_number(name: str) -> tuple[str, int] | None:
    """Prefix and number of a slot map's name; None for any other name, also of a number that is spelled otherwise."""
    for prefix in SLOT_MAPS:
        number = name.removeprefix(prefix)
        if number != name and number.isdecimal() and number == str(int(number)):
            return prefix, int(number)
    return None
