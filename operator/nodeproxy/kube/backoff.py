"""When to try again after a failure, and whether to go on from the version that was reached."""

import random

from nodeproxy.kube.timings import Timings
from nodeproxy.kube.transport import RequestError, SilenceError, StatusError, UnreachableError

_REFUSALS_BEFORE_LISTING = 3
_MOST_DOUBLINGS = 30


class BriefWatchError(RequestError):
    """A watch that the API server ends at once."""


class Backoff:
    """Counts failures in a row. Not for several threads.

    Args:
        timings: how long pauses are.
        jitter: makes them differ from node to node.

    Attributes:
        failures: how many there were since things last went well.
    """

    def __init__(self, timings: Timings, jitter: random.Random) -> None:
        self._timings = timings
        self._jitter = jitter
        self.failures = 0
        self._refusals = 0
        self._expired = False

    def settled(self) -> None:
        """Things go well: the next failure is the first."""
        self.failures = self._refusals = 0
        self._expired = False

    def failed(self, error: Exception) -> float:
        """Count a failure.

        Returns:
            seconds to pause: anything up to a bound that doubles ("full jitter"), and what the API server asks for.
        """
        timings = self._timings
        if isinstance(error, StatusError) and error.expired and not self._expired:
            # Those before it were the API server's absence, which is over. What has to be done is known: list.
            self._expired = True
            self.failures = 0
        earlier, self.failures = self.failures, self.failures + 1
        if isinstance(error, SilenceError) and not earlier:
            return 0.0  # long enough already
        most = timings.most_backoff
        if isinstance(error, UnreachableError):
            most = min(most, timings.most_unanswered)
        pause = self._jitter.uniform(0, min(most, timings.first_backoff * 2 ** min(earlier, _MOST_DOUBLINGS)))
        asked = error.retry_after if isinstance(error, StatusError) else None
        return pause + min(asked, timings.most_wait) if asked else pause

    def must_list(self, error: Exception) -> bool:
        """Whether going on from the version that was reached can't work, or has not for too often."""
        # Silence again and again may have a reason too: a watch from a version that the API server has yet to reach,
        # since it was restored from a backup, says nothing until then, not even by bookmarks.
        if isinstance(error, SilenceError) or (isinstance(error, StatusError) and error.status not in {429, 503}):
            self._refusals += 1
        lost = isinstance(error, StatusError) and error.expired
        broken = not isinstance(error, (UnreachableError, BriefWatchError, StatusError))
        if lost or broken or self._refusals >= _REFUSALS_BEFORE_LISTING:
            self._refusals = 0
            return True
        return False
