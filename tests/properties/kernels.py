"""The kernel that a proxy of these tests works on: a pretended one, with or without the real one beside it.

Every transaction goes to both, and is refused by neither; what is read back is the same. Packets never come to an empty
chain or slot, whatever moment they come in.
"""

import functools
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from nodeproxy.kernel import readback
from nodeproxy.kernel.audit import Difference, TableAudit
from nodeproxy.kernel.errors import OutcomeUnknownError, TooLongError, TransactionError
from nodeproxy.kernel.nft import Nft
from nodeproxy.kube.addresses import Family
from nodeproxy.ruleset.diff import TableState
from nodeproxy.ruleset.mirror import Found, Mirror, slot_map_number
from nodeproxy.ruleset.operations import AddElement, AddRule, FillSlots, Operation, Piece
from nodeproxy.ruleset.render import TEMPLATES, Base, RenderContext, Renderer
from nodeproxy.sync import planner
from unit.ruleset.pretend_kernel import PretendKernel, RefusedError

_DRAW = re.compile(r"numgen random mod (\d+) offset (\d+) v?map @(\S+)")
_run, _check, _read_back = Nft.run, Nft.check, readback.read_back
_transaction, _elsewhere = Renderer.transaction, Renderer.elsewhere


class Script(str):
    """The text of a transaction, with its operations, and whether it is for another table, to try something in."""

    __slots__ = ("elsewhere", "operations")
    operations: tuple[Operation, ...]
    elsewhere: bool


@functools.lru_cache(maxsize=64)
def _renderer(context: RenderContext, templates: Path = TEMPLATES) -> Renderer:
    """Compiling the templates takes longer than all else that an example does."""
    return Renderer(context, templates)


@contextmanager
def renderers_kept() -> Iterator[None]:
    """Have planners share renderers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "Renderer", _renderer)
        yield


@dataclass
class Failure:
    """A transaction that will fail: the ``countdown``-th from now on; ``applied``: the kernel takes it all the same."""

    error: TransactionError
    countdown: int
    applied: bool = False


class Kernel:
    """What transactions are applied to.

    Attributes:
        pretended: the pretended kernel.
        real: whether the kernel of the thread's network namespace takes part.
        failures: transactions that are to fail; those that have are taken out.
        spoilt: service ports (as ``ns/name:port``) whatever is put into the table for which is refused, and whether the
            error says whose fault it is.
        tripped: whether a transaction has failed lately; then it is anybody's guess whose fault that was.
    """

    def __init__(self, *, real: bool) -> None:
        self.pretended = PretendKernel()
        self.real = real
        self.failures: list[Failure] = []
        self.spoilt: dict[str, bool] = {}
        self.tripped = False
        self._broken = False

    @contextmanager
    def used(self) -> Iterator[None]:
        """Have proxies work on it that would work on the kernel; may be nested, then the innermost counts."""

        others: dict[int, Renderer] = {}

        def run(nft: Nft, text: Script) -> None:
            self._take(nft, text)

        def check(nft: Nft, text: Script) -> None:
            self._refuse_spoilt(text)
            if self.real:
                _check(nft, text)
                return
            pretended = PretendKernel() if text.elsewhere else self.pretended.copy()
            try:
                _apply(pretended, text)
            except RefusedError as error:
                raise TransactionError(str(error)) from error

        def transaction(renderer: Renderer, operations: Sequence[Operation], *arguments: Any, **options: Any) -> Script:
            script = Script(_transaction(renderer, operations, *arguments, **options) if self.real else "a transaction")
            script.operations, script.elsewhere = tuple(operations), id(renderer) in others
            return script

        def elsewhere(renderer: Renderer, *arguments: Any) -> Renderer:
            other = _elsewhere(renderer, *arguments)
            others[id(other)] = other
            return other

        def look(_: TableAudit, state: TableState, *__: Any) -> Difference | None:
            return None if self.pretended.mirror() == without_empty_hooks(state.mirror) else Difference("the mirror")

        with renderers_kept(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Nft, "run", run)
            patch.setattr(Nft, "check", check)
            patch.setattr(Renderer, "transaction", transaction)
            patch.setattr(Renderer, "elsewhere", elsewhere)
            if not self.real:
                patch.setattr(TableAudit, "look", look)
            for name, module in [*sys.modules.items()]:
                if name.startswith("nodeproxy.") and hasattr(module, "read_back"):
                    patch.setattr(module, "read_back", self.read_back)
            yield

    def read_back(self, family: Family, base: Base) -> Found | None:
        """What reading the table back gives."""
        if self.real:
            return _read_back(family, base)
        return self.pretended.found() if self.pretended.chains else None

    def _take(self, nft: Nft, text: Script) -> None:
        failure = self._due()
        self.tripped |= failure is not None
        if failure is not None and not failure.applied:
            # What has no halves is broken up then, and may be served badly for a moment: said where that is done.
            self._broken |= isinstance(failure.error, TooLongError)
            raise failure.error
        self._refuse_spoilt(text)
        if self.real:
            try:
                _run(nft, text)
            except TooLongError:  # only in a user namespace, where a message must fit into the socket's buffer
                self._broken = True
                raise
            except TransactionError as error:
                msg = f"the kernel refused {error.statement or text!r}: {error}"
                raise AssertionError(msg) from error
        _apply(self.pretended, text)
        if not self._broken:
            self.pretended.fates()
        if failure is not None:
            raise failure.error

    def _refuse_spoilt(self, text: Script) -> None:
        for operation in text.operations:
            if operation.owner in self.spoilt and isinstance(operation, AddRule | AddElement | FillSlots):
                owner = operation.owner if self.spoilt[operation.owner] else ""
                raise TransactionError("Operation not supported", owner=owner)

    def _due(self) -> Failure | None:
        for failure in self.failures:
            failure.countdown -= 1
        due = next((failure for failure in self.failures if failure.countdown <= 0), None)
        if due is not None:
            self.failures.remove(due)
        return due

    def mended(self) -> None:
        """Nothing fails or is refused any more, and nothing is broken up."""
        self.failures.clear()
        self.spoilt.clear()
        self._broken = False


def _apply(kernel: PretendKernel, text: Script) -> None:
    if text.operations:
        kernel.apply(Piece(switch=[list(text.operations)]))


def without_empty_hooks(mirror: Mirror) -> Mirror:
    """What is remembered, in the form in which the pretended kernel says it."""
    return replace(mirror, hooks={name: hook for name, hook in mirror.hooks.items() if hook})


def errors() -> list[tuple[TransactionError, bool]]:
    """What may go wrong with a transaction, and whether it was applied."""
    return [
        (TransactionError("No such file or directory"), False),
        (TooLongError("Message too long"), False),
        (OutcomeUnknownError("No buffer space available"), False),
        (OutcomeUnknownError("No buffer space available"), True),
    ]


def content(kernel: PretendKernel) -> dict[str, Any]:
    """What a table does, wherever its slots are: in place of slots, a rule has what they lead to, sorted.

    A slot map that is found nowhere in it does not count; that there is none is for :func:`leaks` to say.
    """
    chains = {}
    for name, rules in kernel.chains.items():
        lines = []
        for rule in rules:
            draw = _DRAW.search(rule.text)
            drawn: tuple[object, ...] = ()
            if draw:
                size, offset = int(draw[1]), int(draw[2])
                values = [kernel.slots[draw[3]][slot] for slot in range(offset, offset + size)]
                drawn = tuple(sorted(values, key=str))
            lines.append((_DRAW.sub("", rule.text), rule.comment, drawn))
        chains[name] = (kernel.hooks.get(name), lines)
    containers = {name: body for name, body in kernel.containers.items() if not slot_map_number(name)}
    return {"chains": chains, "containers": containers, "elements": kernel.elements}


def leaks(kernel: PretendKernel) -> set[tuple[str, int]]:
    """Slots that are filled though no rule draws from them, and (with slot -1) slot maps in which nothing is."""
    filled = {(name, slot) for name, slots in kernel.slots.items() for slot in slots or {-1: ""}}
    drawn: set[tuple[str, int]] = set()
    for rules in kernel.chains.values():
        for rule in rules:
            if draw := _DRAW.search(rule.text):
                cells = {(draw[3], slot) for slot in range(int(draw[2]), int(draw[2]) + int(draw[1]))}
                assert not cells & drawn, f"two chains draw from {cells & drawn}"
                drawn |= cells
    return filled - drawn
