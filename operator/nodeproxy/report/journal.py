"""The log: one structured line per event, and none while nothing happens."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Problem
from nodeproxy.model.frontends import Clash


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What one sync of one table did.

    Attributes:
        family: the table's family.
        full: whether the table was read back and compared as a whole.
        services: service ports in the table now.
        changed: service ports whose rules changed.
        transactions: how many were applied; 0: the kernel held all of it already.
        seconds: how long it took.
        took_over: why the table was made anew in one transaction; empty if it was not.
    """

    family: Family
    full: bool
    services: int
    changed: int
    transactions: int
    seconds: float
    took_over: str = ""


class Journal:
    """Writes the log. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._log = structlog.get_logger("nodeproxy")
        self._lock = threading.Lock()
        self._problems: frozenset[Problem] = frozenset()
        self._clashes: dict[Family, frozenset[Clash]] = {}
        self._warnings: frozenset[str] = frozenset()
        self._failing: dict[Family, str] = {}

    def event(self, event: str, **values: object) -> None:
        """Something happened that is as it should be."""
        self._log.info(event, **values)

    def warning(self, event: str, **values: object) -> None:
        """Something happened that somebody should look at."""
        self._log.warning(event, **values)

    def synced(self, result: SyncResult) -> None:
        """A table is as it should be; quiet if it was already."""
        recovered = self._failing.pop(result.family, None) is not None
        if result.transactions or recovered or result.took_over:
            self._log.info(
                "synced",
                family=result.family.label,
                full=result.full,
                services=result.services,
                changed=result.changed,
                transactions=result.transactions,
                milliseconds=round(result.seconds * 1000, 1),
                **({"took_over": result.took_over} if result.took_over else {}),
            )
        else:
            self._log.debug("in step", family=result.family.label, full=result.full, services=result.services)

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

    def problems(self, problems: Sequence[Problem]) -> None:
        """The list of what was left out of the input; logs what is new in it, and what is gone."""
        with self._lock:
            before, self._problems = self._problems, frozenset(problems)
            for problem in problems:
                if problem not in before:
                    self._log.warning(
                        "input left out" if problem.fatal else "input taken in part",
                        origin=problem.origin,
                        object=problem.subject,
                        field=problem.field,
                        reason=problem.reason,
                    )
            for problem in sorted(before - self._problems):
                self._log.info("input problem gone", origin=problem.origin, object=problem.subject, field=problem.field)

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

    def warnings(self, sentences: Iterable[str]) -> None:
        """Sentences about the configuration; logs the new ones."""
        before, self._warnings = self._warnings, frozenset(sentences)
        for sentence in sorted(self._warnings - before):
            self._log.warning("configuration may be incomplete", reason=sentence)
