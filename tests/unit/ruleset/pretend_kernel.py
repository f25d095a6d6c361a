"""A table that takes operations as nftables does, and refuses what nftables refuses.

What is refused was tried on nft 1.0.6 and Linux 6.18: it is one transaction, all or nothing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from nodeproxy.ruleset.mirror import Found, Mirror, SlotUse, slot_map_number
from nodeproxy.ruleset.names import AFFINITY
from nodeproxy.ruleset.operations import (
    AddChain,
    AddContainer,
    AddElement,
    AddRule,
    FillSlots,
    FlushChain,
    FreeSlots,
    Operation,
    Piece,
    RemoveChain,
    RemoveContainer,
    RemoveElement,
    ReplaceTable,
    Rule,
)
from nodeproxy.ruleset.render import digest_of
from nodeproxy.ruleset.rules import DROP, ElementKey, Target
from nodeproxy.ruleset.slots import SlotRange

_CHAIN = re.compile(r"\b(?:goto|jump) (\S+)")
_CONTAINER = re.compile(r"@(\S+)")
_DRAW = re.compile(r"numgen random mod (\d+) offset (\d+) v?map @(\S+)")
_SIZE = re.compile(r"\bsize (\d+)")
_TIMEOUT = re.compile(r"\btimeout (\d+)s")

Resolved = tuple[object, ...]
"""What becomes of a packet, with every chain and slot followed to its end."""


Fates = dict[tuple[str, ElementKey], tuple[str | None, Resolved]]
"""The verdict of each element of dispatch (None in sets), and what becomes of the packets that it matches."""


class RefusedError(AssertionError):
    """The kernel would refuse the transaction."""


@dataclass
class PretendKernel:
    """One table. ``transactions`` counts those that were taken."""

    chains: dict[str, list[Rule]] = field(default_factory=dict)
    hooks: dict[str, str] = field(default_factory=dict)
    containers: dict[str, tuple[str, str]] = field(default_factory=dict)
    elements: dict[str, dict[ElementKey, str | None]] = field(default_factory=dict)
    slots: dict[str, dict[int, Target | str]] = field(default_factory=dict)
    transactions: int = 0

    def copy(self) -> "PretendKernel":
        """Another one that holds the same."""
        return PretendKernel(
            {name: list(rules) for name, rules in self.chains.items()},
            dict(self.hooks),
            dict(self.containers),
            {name: dict(content) for name, content in self.elements.items()},
            {name: dict(content) for name, content in self.slots.items()},
            self.transactions,
        )

    def apply(self, piece: Piece) -> None:
        """Take a transaction.

        Raises:
            RefusedError: it holds an operation that nftables would refuse; nothing has changed then.
        """
        operations = piece.operations()
        if not operations:
            msg = "an empty transaction"
            raise RefusedError(msg)
        after = self.copy()
        # The text flushes every chain that it deletes before it deletes the first.
        doomed = [operation.name for operation in operations if isinstance(operation, RemoveChain)]
        for operation in operations:
            if isinstance(operation, RemoveChain) and doomed:
                for name in doomed:
                    after._chain(name).clear()
                doomed = []
            after._take(operation)
        self.chains, self.hooks, self.containers = after.chains, after.hooks, after.containers
        self.elements, self.slots = after.elements, after.slots
        self.transactions += 1

    def _take(self, operation: Operation) -> None:
        match operation:
            case ReplaceTable():
                for content in (self.chains, self.hooks, self.containers, self.elements, self.slots):
                    content.clear()
            case AddContainer():
                self._add_container(operation)
            case AddChain():
                if operation.name in self.chains and self.hooks.get(operation.name, "") != operation.hook:
                    self._refuse("Operation not supported", operation)
                self.chains.setdefault(operation.name, [])
                if operation.hook:
                    self.hooks[operation.name] = operation.hook
            case FillSlots():
                self._fill(operation)
            case FlushChain():
                self._chain(operation.name).clear()
            case AddRule():
                for name in _CHAIN.findall(operation.rule.text):
                    self._chain(name)
                for name in _CONTAINER.findall(operation.rule.text):
                    self._container(name)
                self._chain(operation.chain).append(operation.rule)
            case RemoveElement():
                content = self._content(operation.container)
                if operation.key not in content:
                    self._refuse("No such file or directory", operation)
                del content[operation.key]
            case AddElement():
                self._add_element(operation)
            case FreeSlots():
                content = self._slot_map(operation.map_name)
                for slot in range(operation.offset, operation.offset + operation.size):
                    if slot not in content:
                        self._refuse("No such file or directory", operation)
                    del content[slot]
            case RemoveChain():
                self._chain(operation.name)
                if operation.name in set(self._references()):
                    self._refuse("Device or resource busy", operation)
                del self.chains[operation.name]
                self.hooks.pop(operation.name, None)
            case RemoveContainer():
                if self._container(operation.name)[0] != operation.kind:
                    self._refuse("No such file or directory", operation)
                if operation.name in {name for text in self._texts() for name in _CONTAINER.findall(text)}:
                    self._refuse("Device or resource busy", operation)
                del self.containers[operation.name]
                self.elements.pop(operation.name, None)
                self.slots.pop(operation.name, None)

    def _add_container(self, operation: AddContainer) -> None:
        have = self.containers.get(operation.name)
        if have is not None:
            without_timeouts = [_TIMEOUT.sub("", body) for body in (have[1], operation.body)]
            if have[0] != operation.kind or without_timeouts[0] != without_timeouts[1]:
                self._refuse("File exists", operation)
        self.containers[operation.name] = (operation.kind, operation.body)
        (self.slots if slot_map_number(operation.name) else self.elements).setdefault(operation.name, {})

    def _fill(self, operation: FillSlots) -> None:
        content = self._slot_map(operation.map_name)
        for index, value in enumerate(operation.values):
            if operation.offset + index in content:
                self._refuse("the slots are taken", operation)
            if isinstance(value, Target) != operation.map_name.startswith("endpoints-"):
                self._refuse("datatype mismatch", operation)
            if isinstance(value, str):
                self._chain(value)
            content[operation.offset + index] = value
        size = _SIZE.search(self.containers[operation.map_name][1])
        if size and len(content) > int(size[1]):
            self._refuse("Too many open files in system", operation)

    def _add_element(self, operation: AddElement) -> None:
        element = operation.element
        content = self._content(element.container)
        if (element.verdict is not None) != (self.containers[element.container][0] == "map"):
            self._refuse("a verdict in a set, or none in a map", operation)
        if element.verdict not in (None, DROP):
            self._chain(str(element.verdict))
        if content.get(element.key, element.verdict) != element.verdict:
            self._refuse("File exists", operation)
        content[element.key] = element.verdict

    def _chain(self, name: str) -> list[Rule]:
        if name not in self.chains:
            self._refuse("No such file or directory", name)
        return self.chains[name]

    def _container(self, name: str) -> tuple[str, str]:
        if name not in self.containers:
            self._refuse("No such file or directory", name)
        return self.containers[name]

    def _content(self, name: str) -> dict[ElementKey, str | None]:
        self._container(name)
        return self.elements[name]

    def _slot_map(self, name: str) -> dict[int, Target | str]:
        self._container(name)
        return self.slots[name]

    def _refuse(self, why: str, what: object) -> None:
        msg = f"{why}: {what}"
        raise RefusedError(msg)

    def _texts(self) -> Iterator[str]:
        return (rule.text for rules in self.chains.values() for rule in rules)

    def _references(self) -> Iterator[str]:
        """Names of chains that something refers to."""
        for text in self._texts():
            yield from _CHAIN.findall(text)
        for content in self.elements.values():
            yield from (verdict for verdict in content.values() if verdict not in (None, DROP))  # type: ignore[misc]
        for slots in self.slots.values():
            yield from (value for value in slots.values() if isinstance(value, str))

    # --- looking at it -------------------------------------------------------------------------------------------

    def fates(self) -> Fates:
        """What becomes of the packets that each element of dispatch matches.

        Raises:
            AssertionError: some packet would come to an empty chain or an empty slot.
        """
        known: dict[str, Resolved] = {}
        affinity = self.affinity()
        return {
            (container, key): (verdict, () if verdict is None else self._follow(verdict, known))
            for container, content in self.elements.items()
            for key, verdict in content.items()
            if container not in affinity
        }

    def _follow(self, chain: str, known: dict[str, Resolved]) -> Resolved:
        if chain == DROP:
            return (DROP,)
        if chain not in known:
            assert self.chains[chain], f"packets come to {chain}, which is empty"
            known[chain] = tuple(self._follow_rule(rule.text, known) for rule in self.chains[chain])
        return known[chain]

    def _follow_rule(self, text: str, known: dict[str, Resolved]) -> Resolved:
        if draw := _DRAW.search(text):
            size, offset, map_name = int(draw[1]), int(draw[2]), draw[3]
            values = []
            for slot in range(offset, offset + size):
                assert slot in self.slots[map_name], f"packets come to slot {slot} of {map_name}, which is empty"
                value = self.slots[map_name][slot]
                values.append(value if isinstance(value, Target) else self._follow(value, known))
            return (_DRAW.sub("", text), *sorted(values, key=repr))  # all are drawn alike, whatever their order
        goals = [self._follow(chain, known) for chain in _CHAIN.findall(text)]
        return (text, *goals)

    def affinity(self) -> dict[str, int]:
        """The timeouts of the affinity sets."""
        return {
            name: int(_TIMEOUT.findall(body)[0])
            for name, (_, body) in self.containers.items()
            if name.startswith(AFFINITY)
        }

    def mirror(self) -> Mirror:
        """What it holds, in the form in which it is remembered."""
        affinity = self.affinity()
        return Mirror(
            chains={name: digest_of(rules) for name, rules in self.chains.items()},
            hooks=dict(self.hooks),
            containers={name: body for name, (_, body) in self.containers.items() if name not in affinity},
            kinds={name: kind for name, (kind, _) in self.containers.items()},
            affinity=affinity,
            elements={name: dict(content) for name, content in self.elements.items() if name not in affinity},
        )

    def found(self) -> Found:
        """What reading it back gives."""
        uses: dict[str, SlotUse] = {}
        for name, rules in self.chains.items():
            for rule in rules:
                if (draw := _DRAW.search(rule.text)) and (known := slot_map_number(draw[3])):
                    uses[name] = SlotUse(known[0], SlotRange(known[1], int(draw[2]), int(draw[1])))
        sizes = {name: _SIZE.search(self.containers[name][1]) for name in self.slots}
        return Found(
            mirror=self.mirror(),
            uses=uses,
            slots={name: dict(content) for name, content in self.slots.items()},
            capacities={name: int(size[1]) for name, size in sizes.items() if size},
        )
