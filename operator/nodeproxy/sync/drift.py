"""What to do about changes that others make to our tables: correct them at once, but do not fight.

A change is corrected at once, unless it follows within a second of the last correction. It then waits for that second
to pass, the next such one for two seconds, and so on: two programs that each want the table otherwise would else keep a
processor busy, and the table in constant change. A change that comes later than that is corrected at once again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nodeproxy.kernel.watch import Disturbance
from nodeproxy.kube.addresses import Family
from nodeproxy.report.journal import Journal, SyncResult
from nodeproxy.sync.runner import Clock

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds from one correction to the next
QUIET = 10.0  # seconds without changes, at least, after which a program has stopped changing the table
_ANNOUNCED_PAUSE = 4.0  # seconds; shorter ones are nothing to write about: some programs make a change in steps
_READING_SHARE = 10  # what turns out to be harmless is looked at for at most a tenth of the time
_PROGRAMS = 64  # names that are counted apart
_OTHERS = "other programs"


@dataclass(slots=True)
class _Trouble:
    """What goes on with one table.

    Attributes:
        pending: what was heard of and not looked at yet, by program.
        unresolved: what was looked at, but could not be corrected yet.
        not_before: when (monotonic seconds) the table may be looked at again.
        pause: seconds from the last correction to the next one; 0: there was none lately.
        hasty: whether something of it came before ``not_before``.
        heard_at: when something was heard of last.
        announced: whether it was said that somebody keeps changing the table.
    """

    pending: dict[str, Disturbance] = field(default_factory=dict)
    unresolved: list[Disturbance] = field(default_factory=list)
    not_before: float = 0.0
    pause: float = 0.0
    hasty: bool = False
    heard_at: float = 0.0
    announced: bool = False

    @property
    def over_at(self) -> float:
        """When all is forgotten if nothing else is heard of."""
        return max(self.heard_at, self.not_before) + max(QUIET, self.pause)


class Drift:
    """Says when a table has to be looked at because of others, and keeps count of who changes it.

    Args:
        clock: the time.
        journal: is told of corrections, and of programs that keep changing a table.
    """

    def __init__(self, clock: Clock, journal: Journal) -> None:
        self._clock = clock
        self._journal = journal
        self._troubles = {family: _Trouble() for family in Family}
        self._counts: Counter[tuple[Family, str]] = Counter()

    @property
    def counts(self) -> Mapping[tuple[Family, str], int]:
        """Foreign transactions on our tables so far, by family and program (empty: not known)."""
        return self._counts

    def heard(self, disturbances: Iterable[Disturbance]) -> None:
        """Take note of what others did."""
        now = self._clock.now()
        for disturbance in disturbances:
            trouble = self._troubles[disturbance.family]
            self._end(disturbance.family, now)
            trouble.heard_at = now
            trouble.hasty |= now < trouble.not_before
            program = self._count(disturbance)
            before = trouble.pending.get(program)
            trouble.pending[program] = disturbance if before is None else before.and_then(disturbance)
            if trouble.not_before > now and trouble.pause >= _ANNOUNCED_PAUSE and not trouble.announced:
                trouble.announced = True
                self._journal.fight(disturbance.family, disturbance.program, trouble.pause)

    def due(self) -> float | None:
        """When (monotonic seconds) a table should be looked at; None: none has to be."""
        return min((t.not_before for t in self._troubles.values() if t.pending), default=None)

    def waiting(self, family: Family) -> Iterable[Disturbance]:
        """What was done to a table and is not to be looked into yet, since its last correction was just now."""
        return self._troubles[family].pending.values()

    def take(self) -> dict[Family, list[Disturbance]]:
        """What was done to the tables that should be looked at now; :meth:`done` is to be called for each."""
        now = self._clock.now()
        found: dict[Family, list[Disturbance]] = {}
        for family, trouble in self._troubles.items():
            if trouble.pending and trouble.not_before <= now:
                found[family], trouble.pending = [*trouble.pending.values()], {}
        return found

    def done(self, family: Family, disturbances: Sequence[Disturbance], result: SyncResult | None) -> None:
        """A table has been looked at.

        Args:
            family: whose.
            disturbances: what was heard of before; a table may be found changed without.
            result: what the sync did; None: it failed.
        """
        now, trouble = self._clock.now(), self._troubles[family]
        corrected = result is not None and bool(result.drift)
        causes = [*trouble.unresolved, *disturbances][-_PROGRAMS:]
        trouble.unresolved = causes if result is None else []
        if corrected and not causes:
            self._count(Disturbance(family, ""))
        if result is not None and (causes or corrected):
            self._journal.drift(result, causes)
        if not disturbances:
            return
        hasty, trouble.hasty = trouble.hasty, bool(trouble.pending)
        if corrected or result is None:
            again = hasty or result is None
            trouble.pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, trouble.pause * 2)) if again else FIRST_PAUSE
            trouble.not_before = now + trouble.pause
        else:
            trouble.not_before = now + min(LONGEST_PAUSE, result.seconds * _READING_SHARE)

    def settle_due(self) -> float | None:
        """When :meth:`settle` has something to say; None: never, as things are."""
        return min((t.over_at for t in self._troubles.values() if t.announced and not t.pending), default=None)

    def settle(self) -> None:
        """Say where the changes have come to an end."""
        now = self._clock.now()
        for family in self._troubles:
            self._end(family, now)

    def _end(self, family: Family, now: float) -> None:
        trouble = self._troubles[family]
        if trouble.pending or now < trouble.over_at:
            return
        if trouble.announced:
            self._journal.fight_over(family)
        trouble.pause, trouble.announced = 0.0, False

    def _count(self, disturbance: Disturbance) -> str:
        """Count; returns the program that it is counted as."""
        key = (disturbance.family, disturbance.program)
        if key not in self._counts and len(self._counts) >= _PROGRAMS:
            key = (disturbance.family, _OTHERS)
        self._counts[key] += max(1, disturbance.transactions)
        return key[1]


def chains_of(disturbances: Iterable[Disturbance]) -> frozenset[str]:
    """The chains whose rules were changed, as far as they are known."""
    return frozenset().union(*(disturbance.chains or () for disturbance in disturbances))
