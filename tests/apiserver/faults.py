"""What goes wrong with requests: each fault says which requests it is for, how many of them, and what happens.

Faults stand in ``ApiServer.faults`` and are asked in order. The first that answers a request itself is the answer;
of those that only disturb one, all do.
"""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from .connection import Body, Request
from .status import Status

_lock = threading.Lock()


@dataclass(kw_only=True, eq=False)
class Fault:
    """A fault.

    Attributes:
        kind: the kind that is asked for; None: any.
        verb: ``list`` or ``watch``; None: both.
        when: which of these requests; None: all.
        times: how many requests are hit, the first that come; None: all.
        hits: how many were.
    """

    kind: str | None = None
    verb: str | None = None
    when: Callable[[Request], bool] | None = None
    times: int | None = None
    hits: int = field(default=0, init=False)

    def claims(self, request: Request, kind: str | None) -> bool:
        """Whether it is for this request; that counts."""
        with _lock:
            if self.times is not None and self.hits >= self.times:
                return False
            if (self.kind or kind) != kind or (self.verb or request.verb) != request.verb:
                return False
            if not self.concerns(request) or (self.when is not None and not self.when(request)):
                return False
            self.hits += 1
            return True

    def concerns(self, request: Request) -> bool:
        """Whether a request has what the fault is about."""
        return True

    def answer(self, request: Request) -> Status | None:
        """What is answered instead; None: what is asked for, perhaps disturbed."""
        return None

    def alter(self, data: bytes) -> bytes:
        """What is said instead, before it is compressed: the whole of a list, or some lines of a watch."""
        return data

    def pour(self, body: Body, data: bytes, onward: Callable[[bytes], None]) -> None:
        """Hand bytes of an answer on, or do what is worse."""
        onward(data)


@dataclass(kw_only=True, eq=False)
class _AfterBytes(Fault):
    """Something happens once so many bytes of an answer (as it goes over the wire, without chunks' lengths) are out."""

    after_bytes: int = 0

    def pour(self, body: Body, data: bytes, onward: Callable[[bytes], None]) -> None:
        allowed = self.after_bytes - body.sent
        if len(data) <= allowed:
            onward(data)
            return
        self.strike(body, data[: max(allowed, 0)], onward)

    def strike(self, body: Body, last: bytes, onward: Callable[[bytes], None]) -> None:
        onward(last)
        self.end(body)

    def end(self, body: Body) -> None:
        raise NotImplementedError


@dataclass(kw_only=True, eq=False)
class Cut(_AfterBytes):
    """The connection is closed in the middle of an answer."""

    def end(self, body: Body) -> None:
        body.wire.cut()


@dataclass(kw_only=True, eq=False)
class Reset(_AfterBytes):
    """The connection is reset in the middle of an answer."""

    def end(self, body: Body) -> None:
        body.wire.reset()


@dataclass(kw_only=True, eq=False)
class Silence(_AfterBytes):
    """The connection stays, and nothing more comes."""

    def end(self, body: Body) -> None:
        body.wire.hold()


@dataclass(kw_only=True, eq=False)
class TruncatedChunk(_AfterBytes):
    """The connection is closed within a chunk that had announced more."""

    def strike(self, body: Body, last: bytes, onward: Callable[[bytes], None]) -> None:
        body.frame(last, announce=len(last) + 100)
        body.wire.cut()


@dataclass(kw_only=True, eq=False)
class Slow(Fault):
    """An answer trickles."""

    bytes_per_second: int

    def pour(self, body: Body, data: bytes, onward: Callable[[bytes], None]) -> None:
        step = max(self.bytes_per_second // 20, 1)
        for start in range(0, len(data), step):
            onward(data[start : start + step])
            body.wire.pause(step / self.bytes_per_second)


@dataclass(kw_only=True, eq=False)
class SmallChunks(Fault):
    """An answer comes in chunks that end anywhere: within lines and within characters."""

    size: int = 1

    def pour(self, body: Body, data: bytes, onward: Callable[[bytes], None]) -> None:
        for start in range(0, len(data), self.size):
            onward(data[start : start + self.size])


@dataclass(kw_only=True, eq=False)
class Alter(Fault):
    """Something else is said: what a function makes of a whole list, or of some lines of a watch."""

    function: Callable[[bytes], bytes]

    def alter(self, data: bytes) -> bytes:
        return self.function(data)


@dataclass(kw_only=True, eq=False)
class Before(Fault):
    """Something happens after what is answered has been read from the store, and before the first of it goes out."""

    call: Callable[[], object]
    times: int | None = 1
    _called: bool = field(default=False, init=False)

    def alter(self, data: bytes) -> bytes:
        if not self._called:
            self._called = True
            self.call()
        return data


@dataclass(eq=False)
class Refuse(Fault):
    """An error is answered."""

    status: int
    reason: str | None = None
    message: str = "a test says so"

    def answer(self, request: Request) -> Status | None:
        return Status(self.status, self.message, self.reason)


@dataclass(eq=False)
class RetryAfter(Fault):
    """The client is told to come back later."""

    status: int = 429
    seconds: int = 1

    def answer(self, request: Request) -> Status | None:
        message = "too many requests, please try again later"
        return Status(self.status, message, retry_after=self.seconds)


@dataclass(eq=False)
class RequireToken(Fault):
    """Whoever does not show one of these bearer tokens is turned away. The set may change."""

    tokens: set[str]

    def concerns(self, request: Request) -> bool:
        return request.token not in self.tokens

    def answer(self, request: Request) -> Status | None:
        return Status(401, "Unauthorized")


@dataclass(kw_only=True, eq=False)
class NoStreamingLists(Fault):
    """The server does not stream lists: it knows the parameter and has it switched off, or never heard of it.

    Either way 422 is what it answers: the one forbids sendInitialEvents, the other resourceVersionMatch of a watch.
    """

    unknown: bool = False
    status: int = 422

    def concerns(self, request: Request) -> bool:
        return request.is_watch and bool({"sendInitialEvents", "resourceVersionMatch"} & set(request.query))

    def answer(self, request: Request) -> Status | None:
        name = "resourceVersionMatch" if self.unknown else "sendInitialEvents"
        return Status(self.status, f'ListOptions.meta.k8s.io "" is invalid: {name}: Forbidden: for watch')


@dataclass(kw_only=True, eq=False)
class NoFieldSelector(Fault):
    """The server offers no field selectors but those of metadata."""

    def concerns(self, request: Request) -> bool:
        names = re.findall(r"([\w.]+)!?=", request.query.get("fieldSelector", ""))
        return any(not name.startswith("metadata.") for name in names)

    def answer(self, request: Request) -> Status | None:
        return Status(400, f"field label not supported: {request.query['fieldSelector']}")
