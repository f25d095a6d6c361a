"""When to sync: at once after a quiet time, then not too often; again soon after a failure; at least hourly."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Time, so that tests can make it pass."""

    def now(self) -> float:
        """Monotonic seconds."""

    def wait(self, event: threading.Event, timeout: float) -> None:
        """Return when the event is set, or after ``timeout`` seconds."""


class SystemClock:
    """The machine's own time."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wait(self, event: threading.Event, timeout: float) -> None:
        """Return when the event is set, or after ``timeout`` seconds."""
        event.wait(timeout)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Seconds between runs.

    Attributes:
        minimum: from the end of one run to the start of the next, whatever its reason (minSyncPeriod).
        retry: from the end of a failed run to the next try (syncPeriod), if that is sooner than ``maximum``.
        maximum: from the end of one run to the next if nobody asks for one.
    """

    minimum: float = 1.0
    retry: float = 30.0
    maximum: float = 3600.0


class Runner:
    """Runs a function when asked to, within bounds; requests that come meanwhile become one run.

    Args:
        run: the function; returns whether it succeeded.
        intervals: the bounds.
        clock: the time.
        tidy: a chore of little weight that does not count as a run.
        tidy_due: when (monotonic seconds) it should be done; None: there is nothing to do.
        run_due: when (monotonic seconds) there should be a run even if nobody asks; None: after ``maximum``.
        urgent_due: when (monotonic seconds) there has to be a run even if ``minimum`` has not passed; None: there is no
            hurry. It is asked again after :meth:`wake`; after a run it has to be later, or None.
    """

    def __init__(
        self,
        run: Callable[[], bool],
        intervals: Intervals,
        clock: Clock,
        tidy: Callable[[], None] = lambda: None,
        tidy_due: Callable[[], float | None] = lambda: None,
        run_due: Callable[[], float | None] = lambda: None,
        urgent_due: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._run = run
        self._intervals = intervals
        self._clock = clock
        self._tidy = tidy
        self._tidy_due = tidy_due
        self._run_due = run_due
        self._urgent_due = urgent_due
        self._event = threading.Event()
        self._requested = False
        self._stopped = False
        self._ended: float | None = None
        self._failed = False

    def request(self) -> None:
        """Ask for a run; from any thread."""
        self._requested = True
        self._event.set()

    def wake(self) -> None:
        """Have the loop look again at what is due; from any thread."""
        self._event.set()

    def stop(self) -> None:
        """End the loop after what it is doing; from any thread, or from a signal handler."""
        self._stopped = True
        self._event.set()

    def loop(self) -> None:
        """Run as needed until stopped."""
        while not self._stopped:
            self._event.clear()
            # Whatever was asked for before this line is seen below; whatever comes later sets the event again.
            now = self._clock.now()
            due = self._due()
            if due is not None and due <= now:
                self._requested = False
                self._failed = not self._run()
                self._ended = self._clock.now()
                continue
            chore = self._tidy_due()
            if chore is not None and chore <= now:
                self._tidy()
                continue
            if self._stopped:
                return
            pause = min(
                (moment - now for moment in (due, chore) if moment is not None), default=self._intervals.maximum
            )
            self._clock.wait(self._event, pause)

    def _due(self) -> float | None:
        """When the next run is due; None: nobody has asked for a first one."""
        if self._ended is None:
            return 0.0 if self._requested else None
        due = self._ended + self._intervals.maximum
        if self._requested:
            due = self._ended
        elif self._failed:
            due = min(due, self._ended + self._intervals.retry)
        elif (latest := self._run_due()) is not None:
            due = min(due, latest)
        due = max(due, self._ended + self._intervals.minimum)
        urgent = self._urgent_due()
        return due if urgent is None else min(due, urgent)
