"""The log: one structured line per event, and none while nothing happens."""

import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog

from nodeproxy.kernel.errors import Refusal
from nodeproxy.kernel.watch import Disturbance
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Problem, in_order
from nodeproxy.model.frontends import Clash
from nodeproxy.model.service import ServicePortName

_Note = TypeVar("_Note", bound=Hashable)
_LINES = 20  # lines about service ports that are refused at once, at most
_NAMES = 5  # names of service ports in a log line, at most


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What one sync of one table did.

    Attributes:
        family: the table's family.
        full: whether the table was read back and compared as a whole.
        services: service ports in the table now.
        changed: service ports whose rules changed since the last sync; a full sync looks at all of them.
        transactions: how many were applied; 0: the kernel held all of it already.
        seconds: how long it took.
        took_over: why the table was made anew in one transaction; empty if it was not.
        refused: service ports that are left out, because nft or the kernel refuses their rules.
        drift: what somebody else had changed, as far as it was found; empty if nothing was.
    """

    family: Family
    full: bool
    services: int
    changed: Sequence[ServicePortName]
    transactions: int
    seconds: float
    took_over: str = ""
    refused: int = 0
    drift: str = ""


class Journal:
    """Writes the log.

    ``event``, ``warning`` and ``problems`` may be called from any thread, the others from the syncing thread.
    """

    def __init__(self) -> None:
        self._log = structlog.get_logger("nodeproxy")
        self._lock = threading.Lock()
        self._problems: frozenset[Problem] = frozenset()
        self._clashes: dict[Family, frozenset[Clash]] = {}
        self._notes: dict[tuple[str, Family], frozenset[tuple[ServicePortName, object]]] = {}
        self._warnings: frozenset[str] = frozenset()
        self._failing: dict[Family, str] = {}
        self._seen: set[Family] = set()
        self._refusals: dict[Family, dict[ServicePortName, Refusal]] = {}

    def event(self, event: str, **values: object) -> None:
        """Something happened that is as it should be."""
        self._log.info(event, **values)

    def warning(self, event: str, **values: object) -> None:
        """Something happened that somebody should look at."""
        self._log.warning(event, **values)

    def synced(self, result: SyncResult) -> None:
        """A table is as it should be; quiet if it was already, but for the first time."""
        recovered = self._failing.pop(result.family, None) is not None
        news = recovered or bool(result.transactions or result.took_over) or result.family not in self._seen
        self._seen.add(result.family)
        values: dict[str, object] = {
            "family": result.family.label,
            "full": result.full,
            "services": result.services,
            "transactions": result.transactions,
            "milliseconds": round(result.seconds * 1000, 1),
        }
        if not result.full:
            values["changed"] = len(result.changed)
            values["names"] = [str(name) for name in result.changed[:_NAMES]]
            if len(result.changed) > _NAMES:
                values["more"] = len(result.changed) - _NAMES
        if result.took_over:
            values["took_over"] = result.took_over
        if result.refused:
            values["refused"] = result.refused
        log = self._log.debug if not news else self._log.warning if result.refused else self._log.info
        log("synced" if result.transactions else "in step", **values)

    def failed(self, family: Family, error: Exception, retry_seconds: float) -> None:
        """A table could not be brought to what it should be."""
        self._failing[family] = str(error)
        self._log.error(
            "sync failed",
            family=family.label,
            error=str(error),
            kind=type(error).__name__,
            owner=getattr(error, "owner", ""),
            statement=getattr(error, "statement", ""),
            retry_seconds=retry_seconds,
        )

    def tidying_failed(self, family: Family, error: Exception) -> None:
        """Remains could not be removed; they are found again by the full sync that follows."""
        self._log.warning("removing remains failed", family=family.label, error=str(error))

    def drift(self, result: SyncResult, disturbances: Sequence[Disturbance]) -> None:
        """Somebody else changed a table; quiet if there was nothing to correct."""
        programs = sorted({disturbance.program for disturbance in disturbances if disturbance.program})
        lost = any(disturbance.lost for disturbance in disturbances)
        values: dict[str, object] = {
            "family": result.family.label,
            "programs": programs or ["unknown"],
            "cause": "events lost" if lost else "foreign change" if disturbances else "found by an audit",
        }
        if not result.drift:
            self._log.debug("foreign change left nothing to correct", **values)
            return
        self.warning(
            "foreign change corrected",
            **values,
            found=result.drift,
            transactions=result.transactions,
            milliseconds=round(result.seconds * 1000, 1),
        )

    def fight(self, family: Family, program: str, pause: float) -> None:
        """A program keeps changing a table; it is corrected less and less often."""
        self.warning(
            "another program keeps changing the table",
            family=family.label,
            program=program or "unknown",
            effect="corrected after ever longer pauses, as long as this goes on",
            pause_seconds=pause,
        )

    def fight_over(self, family: Family) -> None:
        """Nobody has changed a table for a while."""
        self.warning(
            "no other program changes the table any more",
            family=family.label,
            effect="the next change is corrected at once again",
        )

    def refused(self, family: Family, refusals: Mapping[ServicePortName, Refusal]) -> None:
        """The list of service ports that are left out; logs what is new in it, and what is gone.

        Of many at once, the first ones are named, and the rest is counted.
        """
        before = self._refusals.get(family, {})
        self._refusals[family] = dict(refusals)
        # The same refusal may be said of another statement the next time, say with other slots.
        new = [
            name for name, refusal in refusals.items() if name not in before or before[name].reason != refusal.reason
        ]
        for name in new[:_LINES]:
            self._log.error(
                "service port refused",
                family=family.label,
                service=str(name),
                reason=refusals[name].reason,
                statement=refusals[name].statement,
                effect="left out; what was there before stays in force",
            )
        gone = [name for name in before if name not in refusals]
        for name in gone[:_LINES]:
            self._log.info("service port no longer refused", family=family.label, service=str(name))
        for event, names in (("service port refused", new), ("service port no longer refused", gone)):
            if len(names) > _LINES:
                self._log.warning(event, family=family.label, more=len(names) - _LINES)

    def refusals(self, family: Family) -> Mapping[ServicePortName, Refusal]:
        """The service ports of a family that are left out, and why."""
        return self._refusals.get(family, {})

    def problems(self, problems: Sequence[Problem]) -> None:
        """The list of what was left out of the input; logs what is new in it, and what is gone."""
        with self._lock:
            before, self._problems = self._problems, frozenset(problems)
            for problem in problems:
                if problem not in before:
                    self._log.warning("input problem", **_where(problem), reason=problem.reason, **_effect(problem))
            for problem in in_order(before - self._problems):
                self._log.info("input problem gone", **_where(problem), reason=problem.reason)

    def clashes(self, family: Family, clashes: Iterable[Clash]) -> None:
        """The list of frontends that several service ports claim; logs what is new in it."""
        before, now = self._clashes.get(family, frozenset()), frozenset(clashes)
        self._clashes[family] = now
        for clash in sorted(now - before, key=str):
            self._log.warning(
                "frontend claimed twice",
                family=family.label,
                frontend=str(clash.frontend),
                winner=str(clash.winner),
                losers=[str(loser) for loser in clash.losers],
            )
        for gone in {clash.frontend for clash in before} - {clash.frontend for clash in now}:
            self._log.info("frontend no longer claimed twice", family=family.label, frontend=str(gone))

    def unmatched(self, family: Family, unmatched: Mapping[ServicePortName, tuple[str, ...]]) -> None:
        """Service ports without endpoints though their slices have some, for other ports; logs the new ones."""
        for name, others in self._new_notes("unmatched", family, unmatched):
            self._log.warning(
                "service port has no endpoints",
                family=family.label,
                service=str(name),
                endpoints_are_for=", ".join(others),
            )

    def ignored_hints(self, family: Family, ignored: Mapping[ServicePortName, str]) -> None:
        """Service ports whose endpoints' hints are not used, and why; logs the new ones."""
        for name, reason in self._new_notes("ignored hints", family, ignored):
            self._log.info("topology hints ignored", family=family.label, service=str(name), reason=reason)

    def _new_notes(
        self, kind: str, family: Family, notes: Mapping[ServicePortName, _Note]
    ) -> list[tuple[ServicePortName, _Note]]:
        """Those of a kind of notes that were not there the last time, in order of their service ports."""
        before = self._notes.get((kind, family), frozenset())
        now = self._notes[kind, family] = frozenset(notes.items())
        return [(name, notes[name]) for name, _ in sorted(now - before, key=lambda note: str(note[0]))]

    def advice(self, sentences: Iterable[str]) -> None:
        """Sentences about what may not be meant so; logs those that are new, and those that no longer hold."""
        before, self._warnings = self._warnings, frozenset(sentences)
        for sentence in sorted(self._warnings - before):
            self._log.warning("check this", reason=sentence)
        for sentence in sorted(before - self._warnings):
            self._log.info("no longer so", reason=sentence)


def _effect(problem: Problem) -> dict[str, str]:
    """What a problem costs, if that is a whole object or file."""
    if not problem.fatal:
        return {}
    return {"effect": "left out; what was there before stays in force" if problem.kept else "left out"}


def _where(problem: Problem) -> dict[str, str]:
    """Where a problem is; what is not known is left out."""
    where = {"origin": problem.origin, "object": problem.subject, "field": problem.field}
    return {name: value for name, value in where.items() if value}
