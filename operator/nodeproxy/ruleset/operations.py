"""The operations that a transaction is made of, and the pieces that a big change is cut into.

A transaction defines before it refers and removes last: its operations are spelled in the order of their stages.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from nodeproxy.ruleset.rules import AffinitySet, Element, ElementKey, Target
from nodeproxy.ruleset.slots import runs


class Stage(IntEnum):
    """The order of operations within a transaction."""

    TABLE = 0
    CONTAINER = 1
    CHAIN = 2
    EMPTY_SLOTS = 3
    SLOTS = 4
    FLUSH = 5
    RULE = 6
    REMOVE_ELEMENTS = 7
    ELEMENTS = 8
    FREE_SLOTS = 9
    REMOVE_CHAIN = 10
    REMOVE_CONTAINER = 11


class Rule(NamedTuple):
    """A rule as a template spelled it: the statement, what a reader should know, and a digest of both."""

    text: str
    comment: str
    digest: str

    @property
    def tagged_comment(self) -> str:
        """The comment that goes into the kernel, from where a later run reads the digest back."""
        return f"{self.comment} #{self.digest}" if self.comment else f"#{self.digest}"


class ReplaceTable(NamedTuple):
    """Delete the whole table and declare it anew."""

    owner: str = ""
    stage: Stage = Stage.TABLE
    weight: int = 1


class AddContainer(NamedTuple):
    """Declare a set or map (``kind``); declaring one again with another timeout changes it."""

    owner: str
    kind: str
    name: str
    body: str
    stage: Stage = Stage.CONTAINER
    weight: int = 1


class AddChain(NamedTuple):
    """Declare a chain; ``hook`` is the declaration of a base chain, or empty."""

    owner: str
    name: str
    hook: str = ""
    stage: Stage = Stage.CHAIN
    weight: int = 1


class FillSlots(NamedTuple):
    """Fill consecutive slots of a map from ``offset`` on with targets, or with chains to go to."""

    owner: str
    map_name: str
    offset: int
    values: tuple[Target | str, ...]
    stage: Stage = Stage.SLOTS

    @property
    def slots(self) -> Iterator[tuple[int, Target | str]]:
        """Number and value of each slot."""
        return enumerate(self.values, self.offset)

    @property
    def weight(self) -> int:
        """Its share of a transaction's bound."""
        return len(self.values)


class FlushChain(NamedTuple):
    """Empty a chain."""

    owner: str
    name: str
    stage: Stage = Stage.FLUSH
    weight: int = 1


class AddRule(NamedTuple):
    """Append a rule to a chain."""

    owner: str
    chain: str
    rule: Rule
    stage: Stage = Stage.RULE
    weight: int = 1


class RemoveElement(NamedTuple):
    """Remove an element, which must be there."""

    owner: str
    container: str
    key: ElementKey
    stage: Stage = Stage.REMOVE_ELEMENTS
    weight: int = 1


class AddElement(NamedTuple):
    """Add an element."""

    owner: str
    element: Element
    stage: Stage = Stage.ELEMENTS
    weight: int = 1

    @property
    def container(self) -> str:
        """The set or map it goes into."""
        return self.element.container


class Client(NamedTuple):
    """A client in an affinity set, and for how many more seconds."""

    address: str
    expires: int


class AddClients(NamedTuple):
    """Put clients into an affinity set, to stay as long as they would have stayed."""

    owner: str
    container: str
    clients: tuple[Client, ...]
    stage: Stage = Stage.ELEMENTS

    @property
    def weight(self) -> int:
        """Its share of a transaction's bound."""
        return len(self.clients)


class FreeSlots(NamedTuple):
    """Empty ``size`` consecutive slots of a map: at the end, or (``EMPTY_SLOTS``) before they are filled anew."""

    owner: str
    map_name: str
    offset: int
    size: int
    stage: Stage = Stage.FREE_SLOTS

    @property
    def weight(self) -> int:
        """Its share of a transaction's bound."""
        return self.size


class RemoveChain(NamedTuple):
    """Empty and delete a chain, which must be there and which nothing may refer to."""

    owner: str
    name: str
    stage: Stage = Stage.REMOVE_CHAIN
    weight: int = 1


class RemoveContainer(NamedTuple):
    """Delete a set or map (``kind``), which must be there."""

    owner: str
    kind: str
    name: str
    stage: Stage = Stage.REMOVE_CONTAINER
    weight: int = 1


Operation = (
    ReplaceTable
    | AddContainer
    | AddChain
    | FillSlots
    | FlushChain
    | AddRule
    | RemoveElement
    | AddElement
    | AddClients
    | FreeSlots
    | RemoveChain
    | RemoveContainer
)

_PER_STATEMENT = 500  # slots that one operation fills or frees, so that no operation is ever too big for a message


def fill_slots(owner: str, map_name: str, offset: int, values: tuple[Target | str, ...]) -> Iterator[FillSlots]:
    """Operations that fill slots, each of a bounded size."""
    for start in range(0, len(values), _PER_STATEMENT):
        yield FillSlots(owner, map_name, offset + start, values[start : start + _PER_STATEMENT])


def add_clients(owner: str, affinity_set: AffinitySet, clients: Sequence[Client]) -> Iterator[AddClients]:
    """Operations that put clients into a set, each of a bounded size; nobody stays longer than the set lets them."""
    kept = [
        Client(client.address, min(client.expires, affinity_set.timeout)) for client in clients if client.expires > 0
    ]
    for start in range(0, len(kept), _PER_STATEMENT):
        yield AddClients(owner, affinity_set.name, tuple(kept[start : start + _PER_STATEMENT]))


def free_slots(owner: str, map_name: str, offset: int, size: int) -> Iterator[FreeSlots]:
    """Operations that free slots, each of a bounded size."""
    for start in range(0, size, _PER_STATEMENT):
        yield FreeSlots(owner, map_name, offset + start, min(_PER_STATEMENT, size - start))


def refill_slots(
    owner: str, map_name: str, offset: int, old: Sequence[Target | str], new: Sequence[Target | str]
) -> Iterator[Operation]:
    """Operations that replace what some of consecutive slots hold, in one transaction with each other."""
    differing = [index for index, (before, after) in enumerate(zip(old, new, strict=True)) if before != after]
    for first, size in runs(differing):
        yield FreeSlots(owner, map_name, offset + first, size, Stage.EMPTY_SLOTS)
        yield FillSlots(owner, map_name, offset + first, tuple(new[first : first + size]))


@dataclass(slots=True)
class Piece:
    """A part of a change that is one transaction, and may become several if it is too big for one.

    Attributes:
        prepare: operations that nothing refers to yet, in order; may be cut anywhere.
        switch: groups of operations that put things into force; to be cut between groups only.
    """

    prepare: list[Operation] = field(default_factory=list)
    switch: list[list[Operation]] = field(default_factory=list)

    def operations(self) -> list[Operation]:
        """All operations, in the order of a transaction."""
        found = list(self.prepare)
        for group in self.switch:
            found.extend(group)
        found.sort(key=_stage)
        return found

    def halves(self) -> "tuple[Piece, Piece] | None":
        """Two pieces to apply one after the other in its place; None if it can't be cut without a gap."""
        if self.prepare and self.switch:
            return Piece(prepare=self.prepare), Piece(switch=self.switch)
        if len(self.prepare) > 1:
            middle = len(self.prepare) // 2
            return Piece(prepare=self.prepare[:middle]), Piece(prepare=self.prepare[middle:])
        if len(self.switch) > 1:
            middle = len(self.switch) // 2
            return Piece(switch=self.switch[:middle]), Piece(switch=self.switch[middle:])
        return None

    def broken(self) -> "tuple[Piece, Piece] | None":
        """Two pieces in the place of a single group, as a last resort; None if it is a single operation.

        What the group is about may be served badly for the moment between the two. That is better than never.
        """
        operations = self.operations()
        if len(operations) < 2:
            return None
        middle = len(operations) // 2
        return Piece(switch=[operations[:middle]]), Piece(switch=[operations[middle:]])


def _stage(operation: Operation) -> Stage:
    return operation.stage


def weight(operations: Iterable[Operation]) -> int:
    """How much of a transaction's bound operations take."""
    return sum(operation.weight for operation in operations)


def cut(prepare: Sequence[Operation], switch: Sequence[list[Operation]], limit: int) -> Iterator[Piece]:
    """Cut a change into pieces of about ``limit``: one if it fits, else first what is prepared."""
    total = weight(prepare) + sum(weight(group) for group in switch)
    if not total:
        return
    if total <= limit:
        yield Piece(list(prepare), list(switch))
        return
    piece, filled = Piece(), 0
    for operation in prepare:
        piece.prepare.append(operation)
        filled += operation.weight
        if filled >= limit:
            yield piece
            piece, filled = Piece(), 0
    if piece.prepare:
        yield piece
    yield from cut_groups(switch, limit)


def cut_groups(groups: Iterable[list[Operation]], limit: int) -> Iterator[Piece]:
    """Cut groups that put things into force into pieces of about ``limit``, taking one after the other."""
    piece, filled = Piece(), 0
    for group in groups:
        piece.switch.append(group)
        filled += weight(group)
        if filled >= limit:
            yield piece
            piece, filled = Piece(), 0
    if piece.switch:
        yield piece
