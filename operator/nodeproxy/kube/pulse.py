"""Whether a resource is followed, since when, and when something of it was last heard."""

import time

from nodeproxy.kube.source import SourceHealth

_SLACK = 1.2  # by so much more than allowed may be waited, as the socket's own timeout should come first


class Pulse:
    """Written by the thread that follows a resource, read by any.

    Attributes:
        follows: whether what is known is up to date, as far as can be told.
        detail: why not; or what is done without.
        interruptions: how often following was interrupted.
        lists: how many lists were taken.
    """

    def __init__(self) -> None:
        self.follows = False
        self.detail = "not read yet"
        self.interruptions = 0
        self.lists = 0
        self._turned = time.monotonic()
        self._heard: float | None = None
        self._waiting: tuple[float, float] | None = None  # since when for an answer, and how long that may take

    @property
    def waiting(self) -> float | None:
        """How many seconds may be waited for what was asked for; None: nothing was."""
        waiting = self._waiting
        return waiting and waiting[1]

    def wait(self, limit: float | None) -> None:
        """From now on something is waited for, for some seconds; None: nothing is."""
        self._waiting = None if limit is None else (time.monotonic(), limit)

    def hear(self) -> None:
        """Something came."""
        self._heard = time.monotonic()
        self.wait(self.waiting)

    def set(self, *, follows: bool, detail: str) -> None:
        """Say how it is from now on."""
        if follows is not self.follows:
            self._turned = time.monotonic()
        self.follows, self.detail = follows, detail

    def is_silent(self) -> bool:
        """Whether nothing has come for longer than it may, though something is waited for."""
        waiting = self._waiting
        return waiting is not None and time.monotonic() - waiting[0] > _SLACK * waiting[1]

    def health(self, name: str, left_out: int) -> SourceHealth:
        """All of it."""
        now = time.monotonic()
        silent = self.is_silent()
        return SourceHealth(
            name=name,
            healthy=self.follows and not silent,
            detail="nothing is heard of it" if silent else self.detail,
            since=now - self._turned,
            heard=None if self._heard is None else now - self._heard,
            interruptions=self.interruptions,
            lists=self.lists,
            left_out=left_out,
        )
