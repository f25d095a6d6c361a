"""Applies changes so that a service port whose rules nft or the kernel refuses is left out, and stops no other.

nft often says whose statement it refuses. Where it does not, the change is cut until what is refused is one service
port's. What has been left out is in :attr:`Applier.refused`; the memory of the table then no longer holds for these
service ports, nor for what only goes once they are through, so the table has to be read back.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from nodeproxy.kernel.errors import BusyError, OutcomeUnknownError, Refusal, TooLongError, TransactionError
from nodeproxy.kernel.nft import SYNTAX_ERROR, VALIDATION_ERRORS, Nft
from nodeproxy.kernel.readback import TableForeignError
from nodeproxy.model.service import ServicePortName
from nodeproxy.ruleset.names import is_dynamic
from nodeproxy.ruleset.operations import (
    FlushChain,
    FreeSlots,
    Operation,
    Piece,
    RemoveChain,
    RemoveContainer,
    RemoveElement,
)
from nodeproxy.ruleset.render import Container, Renderer, RenderError
from nodeproxy.ruleset.rules import NODE_PORT_IPS

_ROUNDS = 3  # how often a piece is tried again without those that nft named, before it is cut
_EXISTS = "File exists"  # how a reason ends when an object is there already, and is another
_FEW = 32  # service ports among which the kernel is asked for the one that makes the table invalid


class Applier:
    """Applies the pieces of one change.

    Args:
        nft: applies transactions.
        renderer: renders them.
        isolating: whether service ports are left out; if not, whatever is refused is an error, as it is if the table is
            not there.
        tolerant: an operation that is nobody's, and refused alone, is left out as well.
        touch: is told of operations before they are applied.
        trial: says who of some service ports is refused in a table without the others.

    Attributes:
        refused: what nft or the kernel said, for each service port (as ``ns/name:port``) that was left out.
        failures: the errors of operations that are nobody's and were left out.
        transactions: how many were applied.
        declared: says how a set or map of the table is declared, as :meth:`TableState.declared` does.
    """

    def __init__(
        self,
        nft: Nft,
        renderer: Renderer,
        *,
        isolating: bool = True,
        tolerant: bool = False,
        touch: Callable[[Iterable[Operation]], None] = lambda _: None,
        trial: Callable[[Collection[str]], Iterable[Refusal]] = lambda _: (),
    ) -> None:
        self.refused: dict[str, Refusal] = {}
        self.failures: list[Exception] = []
        self.transactions = 0
        self.declared: Callable[[str], Container | None] = lambda _: None
        self._nft = nft
        self._renderer = renderer
        self._isolating = isolating
        self._tolerant = tolerant
        self._touch = touch
        self._trial = trial

    def refuse(self, name: ServicePortName, error: Exception) -> None:
        """Leave a service port out, for a reason that shows before nft gets to see it."""
        self.refused.setdefault(str(name), Refusal(str(name), str(error)))

    def apply(self, pieces: Iterable[Piece]) -> None:
        """Apply pieces one after the other, without those service ports that turn out to be refused.

        Raises:
            TransactionError: what is refused is nobody's, all is refused, or it may pass by itself.
            TableForeignError: a set or map of the table is declared otherwise than it should be.
            TemplateError: a template is broken.
            KernelError: nothing can be applied.
        """
        for piece in pieces:
            self._apply(piece, 0)

    def apply_whole(self, piece: Piece) -> None:
        """Apply a piece in one transaction, without those service ports that turn out to be refused.

        Only what is too long for one message is cut; who is at fault is found without applying anything.

        Raises:
            TransactionError, TemplateError, KernelError: as :meth:`apply`.
        """
        try:
            self._whole(piece, self._run)
        except TooLongError:
            halves = without(piece, self.refused).halves() if self.refused else piece.halves()
            if halves is None:
                raise
            self.apply(halves)

    def try_whole(self, piece: Piece) -> None:
        """Find out which service ports would be refused, and apply nothing.

        Raises:
            TransactionError, TemplateError, KernelError: as :meth:`apply`; TooLongError as well.
        """
        self._whole(piece, lambda rest: self._nft.check(self._renderer.transaction(rest.operations(), self.declared)))

    def ask(self, piece: Piece) -> Sequence[Refusal]:
        """What nft names of a piece when it is asked once, about each element apart; nothing is applied."""
        try:
            self._nft.check(self._renderer.transaction(piece.operations(), self.declared, apart=True))
        except TransactionError as error:
            return error.refusals
        return ()

    def _whole(self, piece: Piece, run: Callable[[Piece], None]) -> None:
        rounds = 0
        while True:
            rest = without(piece, self.refused) if self.refused else piece
            try:
                run(rest)
            except (TooLongError, OutcomeUnknownError):
                raise
            except (TransactionError, RenderError) as error:
                culprits = self._named(rest, error, thorough=rounds > 0) if rounds < _ROUNDS else []
                if not culprits and not isinstance(error, BusyError) and self._fault(rest, ()) is None:
                    culprits = self._search(rest, owners_of(rest))
                if not culprits:
                    raise
                self._leave_out(culprits)
                rounds += 1
                continue
            return

    def _run(self, piece: Piece) -> None:
        operations = piece.operations()
        if operations:
            self._touch(operations)
            self._nft.run(self._renderer.transaction(operations, self.declared, making=self._isolating))
            self.transactions += 1

    def _apply(self, piece: Piece, rounds: int) -> None:
        if self.refused:
            piece = without(piece, self.refused)
        try:
            self._run(piece)
        except TooLongError as error:
            self._apply_parts(piece, piece.halves() or piece.broken(), error)
        except OutcomeUnknownError:
            raise
        except (TransactionError, RenderError) as error:
            if not self._isolating:
                raise
            self._check_declarations(piece, error)
            culprits = self._named(piece, error, thorough=rounds > 0)
            self._leave_out(culprits)
            if culprits and rounds < _ROUNDS:
                self._apply(piece, rounds + 1)
                return
            if not culprits:
                if isinstance(error, BusyError) and not self._tolerant:
                    raise  # it may pass, and nobody is at fault
                self._nft.run(self._renderer.transaction(()))  # raises if the kernel refuses everything
            self._apply_parts(piece, piece.halves(), error)

    def _check_declarations(self, piece: Piece, error: Exception) -> None:
        """Nobody is at fault if a set or map is there already, but declared otherwise, as by other templates.

        The kernel lets it be declared again only as it is (since Linux 6.2, before that it does not look).

        Raises:
            TableForeignError: there is such a one.
        """
        if not isinstance(error, TransactionError) or not error.reason.endswith(_EXISTS):
            return
        try:
            self._nft.check(self._renderer.declarations(piece.operations(), self.declared))
        except TransactionError as refused:
            if refused.reason.endswith(_EXISTS):
                msg = f"a set or map is declared otherwise ({refused.statement or refused})"
                raise TableForeignError(msg) from error

    def _apply_parts(self, piece: Piece, parts: Sequence[Piece] | None, error: Exception) -> None:
        """Apply a piece's parts; what can't be parted is at fault."""
        for part in parts or ():
            self._apply(part, 0)
        if parts is not None:
            return
        reason = error.reason if isinstance(error, TransactionError) else str(error)
        statement = error.statement if isinstance(error, TransactionError) else ""
        culprits = [Refusal(owner, reason, statement) for owner in owners_of(piece)]
        if not self._isolating or not (culprits or self._tolerant):
            raise error
        self._leave_out(culprits)
        if not culprits:
            self.failures.append(error)

    def _leave_out(self, culprits: Iterable[Refusal]) -> None:
        for refusal in culprits:
            self.refused.setdefault(refusal.owner, refusal)

    def _named(self, piece: Piece, error: Exception, *, thorough: bool) -> list[Refusal]:
        """Those service ports of a piece that nft says are at fault; of each, the first refusal.

        ``thorough``: nft is asked again in any case, so that it names all that it can.
        """
        if not isinstance(error, TransactionError):
            return []
        owners = set(owners_of(piece))
        refusals = list(error.refusals)
        invalid = error.reason.endswith(VALIDATION_ERRORS)
        if invalid and not any(refusal.owner for refusal in refusals):
            refusals += self._trial(owners)
        costly = invalid and len(owners) > _FEW
        if owners and not costly and (thorough or not any(refusal.owner for refusal in refusals)):
            refusals += self.ask(piece)
        first: dict[str, Refusal] = {}
        for refusal in refusals:
            if refusal.owner not in first and (meant := self._meant(piece, refusal)).owner in owners:
                first.setdefault(meant.owner, meant)
        return [*first.values()]

    def _meant(self, piece: Piece, refusal: Refusal) -> Refusal:
        """Which is refused: the statement that nft could not read, or the one before it; nobody's if neither is."""
        if not refusal.reason.startswith(SYNTAX_ERROR):
            return refusal
        for owner in filter(None, (refusal.owner, refusal.before)):
            if (fault := self._fault(piece, (owner,))) is not None:
                return fault._replace(owner=owner)
        return refusal._replace(owner="")

    def _fault(self, piece: Piece, owners: Collection[str]) -> Refusal | None:
        """What would be refused of a piece if it held these service ports only; None: nothing."""
        try:
            self._nft.check(self._renderer.transaction(only(piece, owners).operations(), self.declared))
        except TransactionError as error:
            return Refusal("", error.reason, error.statement)
        except RenderError as error:
            return Refusal("", str(error))
        return None

    def _search(self, piece: Piece, owners: Sequence[str]) -> list[Refusal]:
        """Service ports without which a piece would be taken; some of them, if there are many."""
        fault = self._fault(piece, owners)
        if fault is None:
            return []
        if len(owners) == 1:
            return [fault._replace(owner=owners[0])]
        middle = len(owners) // 2
        found = self._search(piece, owners[:middle]) + self._search(piece, owners[middle:])
        if found:
            return found
        # Each half is taken alone, but not both: the first of the second half that the first one can't stand.
        low, high = middle, len(owners)
        while high - low > 1:
            between = (low + high) // 2
            if (worse := self._fault(piece, owners[:between])) is None:
                low = between
            else:
                high, fault = between, worse
        return [fault._replace(owner=owners[high - 1])]


def owners_of(piece: Piece) -> list[str]:
    """The service ports that a piece holds operations of, in order."""
    owners = dict.fromkeys(operation.owner for operation in piece.prepare)
    owners.update((operation.owner, None) for group in piece.switch for operation in group)
    owners.pop("", None)
    return [*owners]


def without(piece: Piece, owners: Collection[str]) -> Piece:
    """A piece without these service ports, and without the removal of what is nobody's: they may still use it."""
    return _filtered(piece, {id(o) for o in _each(piece) if o.owner in owners or _clears(o)})


def only(piece: Piece, owners: Collection[str]) -> Piece:
    """A piece without all service ports but these."""
    return _filtered(piece, {id(o) for o in _each(piece) if o.owner not in owners and (o.owner or _clears(o))})


def _each(piece: Piece) -> Iterable[Operation]:
    yield from piece.prepare
    for group in piece.switch:
        yield from group


def _filtered(piece: Piece, dropped: Collection[int]) -> Piece:
    if not dropped:
        return piece
    groups = ([operation for operation in group if id(operation) not in dropped] for group in piece.switch)
    return Piece(
        [operation for operation in piece.prepare if id(operation) not in dropped],
        [group for group in groups if group],
    )


def _clears(operation: Operation) -> bool:
    """Whether it removes something that is nobody's; what the table's base replaces does not count."""
    if operation.owner:
        return False
    if isinstance(operation, FlushChain):
        return is_dynamic(operation.name)
    if isinstance(operation, RemoveElement):
        return operation.container != NODE_PORT_IPS
    if isinstance(operation, RemoveContainer):
        return operation.name != NODE_PORT_IPS
    return isinstance(operation, RemoveChain | FreeSlots)
