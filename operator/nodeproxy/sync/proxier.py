"""Keeps one table as it should be."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from nodeproxy.kernel.audit import TableAudit
from nodeproxy.kernel.errors import BusyError, KernelError, OutcomeUnknownError, Refusal, TransactionError
from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.readback import TableForeignError, affinity_clients, read_back
from nodeproxy.model.service import ServicePortName
from nodeproxy.report.journal import Journal, SyncResult
from nodeproxy.ruleset.diff import TableState
from nodeproxy.ruleset.mirror import FOREIGN, Found
from nodeproxy.ruleset.operations import FlushChain, FreeSlots, Piece, RemoveChain, RemoveContainer, RemoveElement
from nodeproxy.ruleset.render import RenderError, TemplateError
from nodeproxy.ruleset.rules import ServiceRules
from nodeproxy.sync.isolation import Applier
from nodeproxy.sync.planner import Planner, Surroundings
from nodeproxy.sync.remains import remains
from nodeproxy.sync.runner import Clock
from nodeproxy.sync.store import ServiceKey, ServiceView
from nodeproxy.sync.trial import Trial

_PASSES = 5  # corrections in a full sync, each without what the one before found to be refused
_MANY = 10  # service ports: if all of so many are refused, it is none of them that is at fault
_TRY_AGAIN = 60.0  # seconds until what is left out is tried again by a full sync: at first; then ever longer
_REMOVALS = (FlushChain, FreeSlots, RemoveElement, RemoveChain, RemoveContainer)
_TIDY_AGAIN = (1.0, 600.0)  # seconds until remains are removed again after a failure: at first, and at most


@dataclass(slots=True)
class _Applied:
    """Counts what has been applied."""

    transactions: int = 0


@dataclass(frozen=True, slots=True)
class _LeftOut:
    """A service port that is left out: why, and what the table holds of it, if anything."""

    refusal: Refusal
    kept: ServiceRules | None


class Proxier:
    """Keeps the table of one family as it should be.

    Plans are made from changes at once; the kernel follows when :meth:`sync` succeeds. When it fails, what the kernel
    holds is no longer known: the next sync reads the table back and corrects it, so nothing is lost.

    A service port whose rules nft or the kernel refuses is left out and reported, and stops no other. What the table
    held of it stays. It is tried again when it changes, and at each full sync, of which there are more then.

    Args:
        planner: says what the table should hold.
        nft: applies transactions; shared between families, used from one thread only.
        journal: is told of all that is done.
        clock: the time.
        full_every: seconds after which the table is looked at in any case, and corrected if it differs.
        refill: whether endpoints take the slots of others that are gone. That needs no look at the whole table by the
            kernel, but deletes, which makes older versions of libnftables read all chains.

    Attributes:
        full_every: the same; may be changed.
    """

    def __init__(
        self,
        planner: Planner,
        nft: Nft,
        journal: Journal,
        clock: Clock,
        full_every: float = 3600.0,
        *,
        refill: bool = True,
    ) -> None:
        self.family = planner.family
        self._planner = planner
        self._nft = nft
        self._journal = journal
        self._clock = clock
        self.full_every = full_every
        self._refill = refill
        self._state: TableState | None = None
        self._pending: dict[ServicePortName, ServiceRules | None] = {}
        self._last_full = 0.0
        self._audit = TableAudit(self.family)
        self._suspected = False
        self._suspects: set[str] = set()
        self._left_out: dict[ServicePortName, _LeftOut] = {}
        self._last_trial: Trial | None = None
        self._try_pause = full_every
        self._tidy_pause = 0.0
        self._tidy_from = 0.0

    def refused(self) -> Mapping[ServicePortName, Refusal]:
        """The service ports that are left out, and why."""
        return {name: left_out.refusal for name, left_out in self._left_out.items()}

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

    def suspect(self, chains: Collection[str], *, look: bool = True) -> None:
        """Somebody else has changed the table, and the rules of ``chains``.

        Args:
            chains: may hold anything now, whatever their comments say.
            look: whether the next sync is to look at all of the table; if not, whichever sync looks next knows of them.
        """
        self._suspected |= look
        self._suspects.update(chains)

    def sync(self) -> SyncResult:
        """Bring the kernel to what is planned.

        Raises:
            KernelError: it could not be done; the next call starts from what the kernel holds then.
        """
        start = self._clock.now()
        applied = _Applied()
        took_over = ""
        changed = tuple(self._pending)
        before: dict[ServicePortName, ServiceRules] = {}
        due = self._suspected or start >= self.full_sync_due()
        drift = self._look(applied) if due else None
        checked = due and self._state is not None
        full = not self._partial_sync(applied, before, due=due and not checked)
        if full:
            try:
                took_over = self._full_sync(applied, before)
            except OutcomeUnknownError:
                took_over = self._full_sync(applied, before)  # it may well have been applied
        if self._suspected and drift is None:
            drift = "it was not looked into"
        if not (applied.transactions or took_over) and self.tidy_due() is None:
            drift = None  # nothing was put right, nor will be: say it could not be read, and then was as it should be
        if full or checked:
            self._last_full = self._clock.now()
            self._suspected = False
            self._suspects.clear()
        self._pending = {}
        self._journal.refused(self.family, self.refused())
        result = SyncResult(
            family=self.family,
            full=full or checked,
            services=len(self._planner.plans) - len(self._left_out),
            changed=changed,
            transactions=applied.transactions,
            seconds=self._clock.now() - start,
            took_over=took_over,
            refused=len(self._left_out),
            drift=drift or "",
        )
        self._journal.synced(result)
        return result

    def tidy(self) -> bool:
        """Delete what went out of use a while ago.

        After a failure it is due again only after a while, ever longer; then what can't be deleted stops nothing else.

        Returns:
            whether that went well; if not, the next sync is a full one, and there should be one soon.
        """
        state = self._state
        if state is None or self._clock.now() < self._tidy_from:
            return True
        self._state = None
        again = self._tidy_pause > 0
        applier = Applier(self._nft, self._planner.renderer, isolating=again, tolerant=again, touch=self._audit.touch)
        applier.declared = state.declared
        try:
            applier.apply(state.tidy(self._clock.now()))
            failures = applier.failures[:1]
        except (KernelError, TemplateError) as error:
            failures = [error]
        if failures or applier.refused:
            first, most = _TIDY_AGAIN
            self._tidy_pause = min(most, max(first, self._tidy_pause * 2))
            self._tidy_from = self._clock.now() + self._tidy_pause
            for failure in failures:
                self._journal.tidying_failed(self.family, failure)
            return False
        self._tidy_pause = 0.0
        self._state = state
        return True

    def full_sync_due(self) -> float:
        """When (monotonic seconds) the table has to be read back and compared at the latest."""
        return self._last_full + (min(self._try_pause, self.full_every) if self._left_out else self.full_every)

    def tidy_due(self) -> float | None:
        """When :meth:`tidy` has something to do; None: there is nothing."""
        due = self._state.next_tidy() if self._state is not None else None
        return max(due, self._tidy_from) if due is not None else None

    def _look(self, applied: _Applied) -> str | None:
        """Look whether the table is as it was left; if it is not, nothing is known of it any more.

        Nor is it if something is left out: that is to be tried again, so all of the table is read back.

        Returns:
            what differs; empty: nothing; None: it was not known before.
        """
        state, self._state = self._state, None
        if state is None:
            return None
        base, suspects = self._planner.base[0], frozenset(self._suspects)
        difference = self._audit.look(state, base, suspects)
        reason = difference.reason if difference is not None else ""
        if difference is not None and difference.dormant:
            self._nft.run(self._planner.renderer.transaction(()))  # declares it without the flag, which wakes it
            applied.transactions += 1
            difference = self._audit.look(state, base, suspects)
        if difference is not None:
            self._suspected = True  # if it can't be corrected now, who does it later is to know
            self._suspects |= difference.chains
        elif not self._left_out:
            self._state = state
        return reason

    def _distrust(self, found: Found | None, kept: Collection[ServiceRules]) -> None:
        """Have those rules written again that somebody else wrote, with whatever comments; but not what is kept."""
        if found is None:
            self._audit.forget()  # the table is about to be made
            return
        staying = {chain.name for rules in kept for chain in rules.chains}
        for name in self._suspects & found.mirror.chains.keys() - staying:
            found.mirror.chains[name] = FOREIGN

    def _partial_sync(self, applied: _Applied, before: dict[ServicePortName, ServiceRules], *, due: bool) -> bool:
        """Apply what is pending to what is known to be in the kernel.

        Args:
            applied: counts.
            before: takes what the table held of the service ports that change.
            due: whether a full sync is due.

        Returns:
            whether that was done; if not (nothing is known, a full sync is due, or the kernel holds something else than
            was thought), only a full sync will do.
        """
        state, self._state = self._state, None
        if state is None or due or self._claims_what_is_kept():
            return False
        state.renderer = self._planner.renderer
        self._try_left_out(self._pending)
        pending = {name: rules for name, rules in self._pending.items() if name not in self._left_out}
        before.update((name, rules) for name in pending if (rules := state.placed(name)) is not None)
        applier = Applier(self._nft, state.renderer, isolating=False, touch=self._audit.touch)
        applier.declared = state.declared
        try:
            began = self._clock.now()
            applier.apply(state.change(pending, began, self._planner.base))
            state.settle(began, self._clock.now())
        except (TransactionError, RenderError) as error:
            self._journal.warning(
                "table differs from what was known", family=self.family.label, error=str(error), next="full sync"
            )
            return False
        finally:
            applied.transactions += applier.transactions
        self._state = state
        return True

    def _full_sync(self, applied: _Applied, before: Mapping[ServicePortName, ServiceRules]) -> str:
        """Read the table back and correct it; returns why it was made anew, if it was.

        What is found to be refused is left out of a second pass, which also undoes what of it there was before that.

        Args:
            applied: counts.
            before: what the table held of service ports that have just been changed, as far as that is known.
        """
        planner, took_over, tried = self._planner, "", set(self._left_out)
        known = {name: left_out.kept for name, left_out in self._left_out.items()} | dict(before)
        if self._left_out:
            self._reload()
            self._try_left_out(planner.plans)
        refusals = {name: left_out.refusal for name, left_out in self._left_out.items() if name in planner.plans}
        since: Collection[str] | None = None
        state: TableState | None = None
        for _ in range(_PASSES):
            wanted = {name: planner.plans[name] for name in sorted(planner.plans) if name not in refusals}
            applier = Applier(self._nft, planner.renderer, touch=self._audit.touch, trial=self._tried)
            now = self._clock.now()
            kept: Mapping[ServicePortName, ServiceRules] = {}
            try:
                found = read_back(self.family, planner.base[0])
                before_that, state = state, TableState(found, planner.renderer, applier.refuse, refill=self._refill)
                applier.declared = state.declared
                rules_of = {name: (*_given(known.get(name)), planner.plans[name]) for name in refusals}
                kept = remains(state.mirror, rules_of, wanted.values(), since)
                self._distrust(found, kept.values())
                if since is None:
                    since = {*state.mirror.chains, *state.mirror.affinity}
                self._correct(applier, state.correct(wanted, now, planner.base, kept, before_that))
            except TableForeignError as error:
                took_over, since = str(error), ()
                state = TableState(None, planner.renderer, applier.refuse, refill=self._refill)
                applier.declared = state.declared
                applier.apply_whole(state.replace(wanted, now, planner.base, error.clients))
            finally:
                applied.transactions += applier.transactions
            if not applier.refused:
                break
            refusals |= {name: applier.refused[str(name)] for name in wanted if str(name) in applier.refused}
            self._check_some_are_taken(refusals)
        else:
            first = next(iter(applier.refused.values()))
            raise TransactionError(first.reason, owner=first.owner, statement=first.statement)
        state.settle(now, self._clock.now())
        same = tried == refusals.keys()
        self._try_pause = min(self._try_pause * 2, self.full_every) if same else _TRY_AGAIN
        self._left_out = {name: _LeftOut(refusal, kept.get(name)) for name, refusal in refusals.items()}
        self._state = state
        return took_over

    def _correct(self, applier: Applier, pieces: Iterable[Piece]) -> None:
        """Apply a correction.

        Raises:
            TableForeignError: something that does not belong into the table can't be removed, such as a set whose name
                is a keyword of nft, or a set is declared otherwise: it has to go with the table.
            KernelError, TemplateError: as :meth:`Applier.apply`.
        """
        at: Piece | None = None

        def followed() -> Iterator[Piece]:
            nonlocal at
            for piece in pieces:
                at = piece
                yield piece

        try:
            applier.apply(followed())
        except TableForeignError as error:
            error.clients = affinity_clients(self.family)
            raise
        except (BusyError, OutcomeUnknownError):
            raise  # it may pass
        except TransactionError as error:
            if at is None or not all(
                operation.owner == "" and isinstance(operation, _REMOVALS) for operation in at.operations()
            ):
                raise
            foreign = TableForeignError(f"it holds something that can't be removed ({error})")
            foreign.clients = affinity_clients(self.family)
            raise foreign from error

    def _reload(self) -> None:
        """Take the templates as they are now, unless one is broken: they may be why service ports are left out."""
        try:
            self._planner.reload()
        except TemplateError as error:
            self._journal.warning("templates not read anew", family=self.family.label, error=str(error))

    def _try_left_out(self, plans: Mapping[ServicePortName, ServiceRules | None]) -> None:
        """Try rules of service ports that are left out, in a table of their own; those that pass no longer are."""
        rules = {name: plans[name] for name in self._left_out if name in plans}
        if not rules:
            return
        try:
            refused = self._trial().refused([each for each in rules.values() if each is not None], self._planner.base)
        except TemplateError:
            return  # as while somebody is changing it: what is in use still works
        for name, each in rules.items():
            refusal = refused.get(str(name)) if each is not None else None
            if refusal is None:
                del self._left_out[name]
            else:
                self._left_out[name] = replace(self._left_out[name], refusal=refusal)

    def _tried(self, owners: Collection[str]) -> Collection[Refusal]:
        """What is refused of these service ports (as ``ns/name:port``) in a table of their own."""
        rules = [rules for name, rules in self._planner.plans.items() if str(name) in owners]
        try:
            return self._trial().first_refused(rules, self._planner.base)
        except TemplateError:
            return ()  # it reads them anew, and somebody may be changing them: what is in use still works

    def _trial(self) -> Trial:
        if self._last_trial is None or self._last_trial.renderer is not self._planner.renderer:
            self._last_trial = Trial(self._nft, self._planner.renderer)
        return self._last_trial

    def _check_some_are_taken(self, refusals: Mapping[ServicePortName, Refusal]) -> None:
        """Raises if all service ports are refused, and they are many."""
        if len(refusals) < max(_MANY, len(self._planner.plans)):
            return
        first = next(iter(refusals.values()))
        reason = f"all {len(refusals)} service ports are refused; the first one: {first.owner}: {first.reason}"
        raise TransactionError(reason, statement=first.statement)

    def _claims_what_is_kept(self) -> bool:
        """Whether a change takes a frontend over from a service port that is left out: its remains are then fewer."""
        kept = [left_out.kept for left_out in self._left_out.values() if left_out.kept]
        owner = {element.key: rules.name for rules in kept for element in rules.elements}
        changed = (rules for rules in self._pending.values() if rules) if owner else ()
        return any(owner.get(element.key, rules.name) != rules.name for rules in changed for element in rules.elements)


def _given(rules: ServiceRules | None) -> tuple[ServiceRules, ...]:
    return (rules,) if rules is not None else ()
