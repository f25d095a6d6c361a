"""Keeps one table as it should be."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from nodeproxy.kernel.errors import KernelError, OutcomeUnknownError, TooLongError, TransactionError
from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.readback import TableForeignError, read_back
from nodeproxy.model.service import ServicePortName
from nodeproxy.report.journal import Journal, SyncResult
from nodeproxy.ruleset.diff import TableState
from nodeproxy.ruleset.operations import Piece
from nodeproxy.ruleset.render import TemplateError
from nodeproxy.ruleset.rules import ServiceRules
from nodeproxy.sync.planner import Planner, Surroundings
from nodeproxy.sync.runner import Clock
from nodeproxy.sync.store import ServiceKey, ServiceView


@dataclass(slots=True)
class _Applied:
    """Counts what has been applied."""

    transactions: int = 0


class Proxier:
    """Keeps the table of one family as it should be.

    Plans are made from changes at once; the kernel follows when :meth:`sync` succeeds. When it fails, what the kernel
    holds is no longer known: the next sync reads the table back and corrects it, so nothing is lost.

    Args:
        planner: says what the table should hold.
        nft: applies transactions; shared between families, used from one thread only.
        journal: is told of all that is done.
        clock: the time.
        full_every: seconds after which the table is read back and compared in any case.
    """

    def __init__(self, planner: Planner, nft: Nft, journal: Journal, clock: Clock, full_every: float = 3600.0) -> None:
        self.family = planner.family
        self._planner = planner
        self._nft = nft
        self._journal = journal
        self._clock = clock
        self._full_every = full_every
        self._state: TableState | None = None
        self._pending: dict[ServicePortName, ServiceRules | None] = {}
        self._last_full = 0.0

    def move(self, surroundings: Surroundings, everything: Callable[[], Mapping[ServiceKey, ServiceView]]) -> None:
        """Take new surroundings, and plan every Service anew where they matter to it."""
        if self._planner.move(surroundings):
            self.update(everything())
            self._pending.update(self._planner.plans)

    def update(self, views: Mapping[ServiceKey, ServiceView]) -> None:
        """Plan Services anew."""
        self._pending.update(self._planner.update(views))
        self._journal.clashes(self.family, self._planner.clashes())
        self._journal.unmatched(self.family, self._planner.unmatched)
        self._journal.ignored_hints(self.family, self._planner.ignored_hints)

    def sync(self) -> None:
        """Bring the kernel to what is planned.

        Raises:
            KernelError: it could not be done; the next call starts from what the kernel holds then.
        """
        start = self._clock.now()
        applied = _Applied()
        took_over = ""
        changed = tuple(self._pending)
        full = not self._partial_sync(applied, due=start - self._last_full >= self._full_every)
        if full:
            try:
                took_over = self._full_sync(applied)
            except OutcomeUnknownError:
                took_over = self._full_sync(applied)  # it may well have been applied
            self._last_full = self._clock.now()
        self._pending = {}
        self._journal.synced(
            SyncResult(
                family=self.family,
                full=full,
                services=len(self._planner.plans),
                changed=changed,
                transactions=applied.transactions,
                seconds=self._clock.now() - start,
                took_over=took_over,
            )
        )

    def tidy(self) -> bool:
        """Delete what went out of use a while ago.

        Returns:
            whether that went well; if not, the next sync is a full one, and there should be one soon.
        """
        state, self._state = self._state, None
        if state is None:
            return True
        try:
            self._apply(state.tidy(self._clock.now()), _Applied())
        except (KernelError, TemplateError) as error:
            self._journal.tidying_failed(self.family, error)
            return False
        self._state = state
        return True

    def full_sync_due(self) -> float:
        """When (monotonic seconds) the table has to be read back and compared at the latest."""
        return self._last_full + self._full_every

    def tidy_due(self) -> float | None:
        """When :meth:`tidy` has something to do; None: there is nothing."""
        return self._state.next_tidy() if self._state is not None else None

    def _partial_sync(self, applied: _Applied, *, due: bool) -> bool:
        """Apply what is pending to what is known to be in the kernel.

        Returns:
            whether that was done; if not (nothing is known, a full sync is due, or the kernel holds something else than
            was thought), only a full sync will do.
        """
        state, self._state = self._state, None
        if state is None or due:
            return False
        state.renderer = self._planner.renderer
        try:
            began = self._clock.now()
            self._apply(state.change(self._pending, began, self._planner.base), applied)
            state.settle(began, self._clock.now())
        except TransactionError as error:
            self._journal.warning(
                "table differs from what was known", family=self.family.label, error=str(error), next="full sync"
            )
            return False
        self._state = state
        return True

    def _full_sync(self, applied: _Applied) -> str:
        """Read the table back and correct it; returns why it was made anew, if it was."""
        planner, now = self._planner, self._clock.now()
        wanted = dict(sorted(planner.plans.items()))
        took_over = ""
        try:
            found = read_back(self.family, planner.base[0])
        except TableForeignError as error:
            took_over = str(error)
            state = TableState(None, planner.renderer)
            self._apply(iter([state.replace(wanted, now, planner.base, error.clients)]), applied)
        else:
            state = TableState(found, planner.renderer)
            self._apply(state.correct(wanted, now, planner.base), applied)
            state.settle(now, self._clock.now())
        self._state = state
        return took_over

    def _apply(self, pieces: Iterator[Piece], applied: _Applied) -> None:
        for piece in pieces:
            self._apply_piece(piece, applied)

    def _apply_piece(self, piece: Piece, applied: _Applied) -> None:
        try:
            self._nft.run(self._planner.renderer.transaction(piece.operations()))
        except TooLongError:
            halves = piece.halves() or piece.broken()
            if halves is None:
                raise
            for half in halves:
                self._apply_piece(half, applied)
        else:
            applied.transactions += 1
