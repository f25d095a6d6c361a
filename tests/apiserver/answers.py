"""What is answered to a request: lists, pages of lists, watches, streaming lists, single objects, errors.

Rules: https://kubernetes.io/docs/reference/using-api/api-concepts/; streaming lists are KEP-3157.
"""

import gzip
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from . import selectors
from .connection import Body, Request, Wire, head
from .faults import Fault
from .pages import BadTokenError, Position
from .resources import RESOURCES, Resource
from .status import Status
from .store import Event, ExpiredError, Key, Record, Snapshot, Store

_GZIP_FROM = 128 * 1024
_CHUNKED_FROM = 2048
_SLICE_SECONDS = 0.1
_LINES_AT_ONCE = 500
_WAIT_FOR_VERSION_SECONDS = 3
_INITIAL_EVENTS_END = {"annotations": {"k8s.io/initial-events-end": "true"}}
_JSON = {"Content-Type": "application/json", "Cache-Control": "no-cache, private"}


class RefusedError(Exception):
    """The answer is an error."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status


@dataclass(slots=True)
class Settings:
    """How the server behaves; may be changed while it runs.

    Attributes:
        second: how many seconds a second of timeoutSeconds lasts: a test need not wait for minutes.
        bookmark_seconds: the time between bookmarks; real, not scaled.
        muted: watches say nothing at all while it is true, not even bookmarks.
        expired_as_status: that a watch's version is expired is said by the HTTP status, not by an event.
        stale: what lists of "any version" (resourceVersion=0) say, by kind: a server that lags behind.
    """

    second: float = 1.0
    bookmark_seconds: float = 60.0
    muted: bool = False
    expired_as_status: bool = False
    stale: dict[str, Snapshot] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Watch:
    """A watch that is open. What a test wants it to do, it does at its next breath."""

    kind: str
    request: Request
    todo: list[Callable[["Exchange"], None]] = field(default_factory=list)


class _Filter(NamedTuple):
    """Which objects were asked for."""

    namespace: str | None
    labels: selectors.Selector
    fields: selectors.Selector

    def passes(self, record: Record | None) -> bool:
        """Whether this one was."""
        return (
            record is not None
            and (self.namespace is None or record.key[0] == self.namespace)
            and self.labels(record.labels)
            and self.fields(record.fields)
        )


class _StreamOverError(Exception):
    """The stream has ended in the orderly way, before its time."""


class Exchange:
    """One request and the answer to it."""

    def __init__(self, wire: Wire, request: Request, faults: Sequence[Fault]) -> None:
        self.request = request
        self._wire = wire
        self._faults = faults
        self._body: Body | None = None
        self._pour: Callable[[bytes], None] = self._onward(0)

    def _onward(self, index: int) -> Callable[[bytes], None]:
        def onward(data: bytes) -> None:
            assert self._body is not None
            if index == len(self._faults):
                self._body.frame(data)
            else:
                self._faults[index].pour(self._body, data, self._onward(index + 1))

        return onward

    def begin(self, status: int, length: int | None, **headers: str) -> None:
        """Send the head; without a length the body comes in chunks."""
        self.request.status = status
        framing = {"Transfer-Encoding": "chunked"} if length is None else {"Content-Length": str(length)}
        self._body = Body(self._wire, length)
        self._wire.send(head(status, {**_JSON, **framing, **headers}))

    def write(self, data: bytes) -> None:
        """Send some of the body, through whatever faults there are."""
        self._pour(data)

    def say(self, *lines: bytes) -> None:
        """Send lines of a watch."""
        if lines:
            self.write(self.altered(b"".join(lines)))

    def altered(self, data: bytes) -> bytes:
        """What faults make of it."""
        for fault in self._faults:
            data = fault.alter(data)
        return data

    def finish(self) -> None:
        """Say that this was all."""
        assert self._body is not None
        self._body.finish()

    def refuse(self, status: Status) -> None:
        """Answer with an error."""
        data = status.encoded()
        retry = {"Retry-After": str(status.retry_after)} if status.retry_after is not None else {}
        self.begin(status.code, len(data), **retry)
        self.write(data)

    def check(self) -> None:
        """Find out whether the client is there still.

        Raises:
            ConnectionEnded: it is not.
        """
        self._wire.check()

    def cut(self) -> None:
        """Close the connection."""
        self._wire.cut()

    def reset(self) -> None:
        """Reset the connection."""
        self._wire.reset()

    def expire(self) -> None:
        """Tell that the version is expired, and end the stream."""
        self.say(error_line(_too_old("1", 2)))
        raise _StreamOverError

    def end(self) -> None:
        """End the stream, in the orderly way."""
        raise _StreamOverError


class Answers:
    """Answers requests from a store."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._lock = threading.Lock()
        self._watches: list[Watch] = []

    @property
    def watches(self) -> list[Watch]:
        """Those that are open."""
        with self._lock:
            return list(self._watches)

    def answer(self, exchange: Exchange) -> None:
        """Answer one request."""
        request = exchange.request
        try:
            route = find(request.path)
            if request.method != "GET":
                raise RefusedError(Status(405, "only reading is offered here", "MethodNotAllowed"))
            if route is None:
                raise RefusedError(Status(404, "the server could not find the requested resource"))
            resource, namespace, name = route
            if name is not None:
                self._get(exchange, resource, (namespace or "", name))
            elif request.is_watch:
                self._watch(exchange, resource, _filter(request, resource, namespace))
            else:
                self._list(exchange, resource, _filter(request, resource, namespace))
        except RefusedError as error:
            exchange.refuse(error.status)

    def _get(self, exchange: Exchange, resource: Resource, key: Key) -> None:
        record = self._store.get(resource.kind, key)
        if record is None:
            raise RefusedError(Status(404, f'{resource.group_resource} "{key[1]}" not found'))
        _send(exchange, record.whole(resource))

    # --- lists ---

    def _list(self, exchange: Exchange, resource: Resource, wanted: _Filter) -> None:
        query = exchange.request.query
        limit = int(query.get("limit") or 0)
        position = _position(query)
        snapshot = self._read(resource.kind, query, position, keep=bool(limit))
        records = [record for record in snapshot.records if wanted.passes(record)]
        if position is not None:
            records = [record for record in records if record.key > position.after]
        metadata: dict[str, object] = {"resourceVersion": str(snapshot.version)}
        if limit and len(records) > limit:
            rest, records = len(records) - limit, records[:limit]
            metadata["continue"] = Position(snapshot.version, records[-1].key).token()
            if not query.get("labelSelector") and not query.get("fieldSelector"):
                metadata["remainingItemCount"] = rest
        start = {"kind": f"{resource.kind}List", "apiVersion": resource.group_version, "metadata": metadata}
        items = b",".join([record.item() for record in records])
        _send(exchange, b'%b,"items":[%b]}' % (msgspec.json.encode(start)[:-1], items))

    def _read(self, kind: str, query: dict[str, str], position: Position | None, *, keep: bool) -> Snapshot:
        if position is not None:
            try:
                return self._store.snapshot(kind, position.version)
            except ExpiredError:
                resume = Position(None, position.after).token()
                message = "The provided continue parameter is too old to display a consistent list result."
                raise RefusedError(Status(410, message, resume=resume)) from None
        version = query.get("resourceVersion", "")
        if query.get("resourceVersionMatch") and not version:
            raise RefusedError(_forbidden("resourceVersionMatch", "unless resourceVersion is provided"))
        if query.get("resourceVersionMatch") == "Exact" and version != "0":
            try:
                return self._store.snapshot(kind, int(version))
            except ExpiredError:
                raise RefusedError(Status(410, "The resourceVersion for the provided list is too old.")) from None
        if version == "0" and kind in self._settings.stale:
            return self._settings.stale[kind]
        self._must_have(version)
        return self._store.snapshot(kind, keep=keep)

    def _must_have(self, version: str) -> None:
        """Wait a while for a version that others have told of.

        Raises:
            RefusedError: it did not come.
        """
        wanted = _version(version)
        deadline = time.monotonic() + _WAIT_FOR_VERSION_SECONDS * self._settings.second
        while (have := self._store.revision) < wanted:
            if time.monotonic() > deadline:
                message = f"Too large resource version: {wanted}, current: {have}"
                raise RefusedError(Status(504, message, retry_after=1))
            time.sleep(0.01)

    # --- watches ---

    def _watch(self, exchange: Exchange, resource: Resource, wanted: _Filter) -> None:
        query = exchange.request.query
        _check_watch(query, initial=exchange.request.is_streaming_list)
        bookmarks = query.get("allowWatchBookmarks") in {"true", "1"}
        watch = Watch(resource.kind, exchange.request)
        with self._lock:
            self._watches.append(watch)
        try:
            try:
                cursor = self._start(exchange, resource, wanted, bookmarks=bookmarks)
                self._follow(exchange, resource, wanted, watch, cursor, bookmarks=bookmarks)
            except _StreamOverError:
                pass
            exchange.finish()
        finally:
            with self._lock:
                self._watches.remove(watch)

    def _start(self, exchange: Exchange, resource: Resource, wanted: _Filter, *, bookmarks: bool) -> int:
        """Say what is said first; returns the version to go on from.

        Raises:
            RefusedError: there is nothing to go on from, and nothing has been said.
            _StreamOverError: the same, and that has been said.
        """
        initial = exchange.request.is_streaming_list
        version = exchange.request.query.get("resourceVersion", "")
        if not initial and version not in {"", "0"}:
            self._check(exchange, resource.kind, _version(version))
            return _version(version)
        snapshot = self._read_all(resource.kind, version, initial=initial)
        exchange.begin(200, None)
        for lines in _added(resource, [record for record in snapshot.records if wanted.passes(record)]):
            exchange.say(*lines)
        if initial and bookmarks:
            exchange.say(bookmark_line(resource, snapshot.version, **_INITIAL_EVENTS_END))
        return snapshot.version

    def _read_all(self, kind: str, version: str, *, initial: bool) -> Snapshot:
        if version == "0" and kind in self._settings.stale:
            return self._settings.stale[kind]
        if initial:
            self._must_have(version)
        return self._store.snapshot(kind)

    def _check(self, exchange: Exchange, kind: str, cursor: int) -> None:
        try:
            self._store.check(kind, cursor)
        except ExpiredError:
            status = _too_old(str(cursor), self._store.revision)
            if self._settings.expired_as_status:
                raise RefusedError(status) from None
            exchange.begin(200, None)
            exchange.say(error_line(status))
            raise _StreamOverError from None
        exchange.begin(200, None)

    def _follow(
        self, exchange: Exchange, resource: Resource, wanted: _Filter, watch: Watch, cursor: int, *, bookmarks: bool
    ) -> None:
        """Say what happens after a version until time is up."""
        seconds = int(exchange.request.query.get("timeoutSeconds") or 1800) * self._settings.second
        deadline = time.monotonic() + seconds
        next_bookmark = time.monotonic() + self._settings.bookmark_seconds
        while (left := deadline - time.monotonic()) > 0:
            exchange.check()
            while watch.todo:
                watch.todo.pop(0)(exchange)
            if self._settings.muted:
                time.sleep(min(left, _SLICE_SECONDS))
                continue
            pause = max(min(left, next_bookmark - time.monotonic(), _SLICE_SECONDS), 0)
            try:
                events, now = self._store.since(resource.kind, cursor, pause)
            except ExpiredError:
                exchange.say(error_line(_too_old(str(cursor), self._store.revision)))
                return
            if now < cursor:
                continue  # A watch from a version to come says nothing until then.
            cursor = now
            lines = [line for event in events for line in _line(resource, wanted, event)]
            for start in range(0, len(lines), _LINES_AT_ONCE):
                exchange.say(*lines[start : start + _LINES_AT_ONCE])
            if bookmarks and time.monotonic() >= next_bookmark:
                exchange.say(bookmark_line(resource, cursor))
                next_bookmark = time.monotonic() + self._settings.bookmark_seconds


def find(path: str) -> tuple[Resource, str | None, str | None] | None:
    """The resource that a path leads to, the namespace and the name if it says them; None: nowhere."""
    for resource in RESOURCES:
        root = resource.path.removesuffix(resource.plural)
        if not path.startswith(root):
            continue
        match path.removeprefix(root).split("/"):
            case [resource.plural]:
                return resource, None, None
            case [resource.plural, name] if not resource.namespaced:
                return resource, None, name
            case ["namespaces", namespace, resource.plural] if resource.namespaced:
                return resource, namespace, None
            case ["namespaces", namespace, resource.plural, name] if resource.namespaced:
                return resource, namespace, name
    return None


def bookmark_line(resource: Resource, version: int, **metadata: object) -> bytes:
    """A bookmark as a line of a watch."""
    obj = {"kind": resource.kind, "apiVersion": resource.group_version,
           "metadata": {"resourceVersion": str(version), **metadata}, **resource.empty}  # fmt: skip
    return msgspec.json.encode({"type": "BOOKMARK", "object": obj}) + b"\n"


def error_line(status: Status) -> bytes:
    """An error as a line of a watch."""
    return msgspec.json.encode({"type": "ERROR", "object": status.body()}) + b"\n"


def _line(resource: Resource, wanted: _Filter, event: Event) -> Iterator[bytes]:
    """An event as its watcher sees it: what comes to match is added, what ceases to is deleted."""
    before, after = wanted.passes(event.old), wanted.passes(event.new)
    if after:
        assert event.new is not None
        yield _event(b"MODIFIED" if before else b"ADDED", event.new.whole(resource))
    elif before:
        assert event.old is not None
        yield _event(b"DELETED", event.old.whole(resource, event.version))


def _event(kind: bytes, obj: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind, obj)


def _added(resource: Resource, records: Sequence[Record]) -> Iterator[list[bytes]]:
    for start in range(0, len(records), _LINES_AT_ONCE):
        yield [_event(b"ADDED", record.whole(resource)) for record in records[start : start + _LINES_AT_ONCE]]


def _send(exchange: Exchange, data: bytes) -> None:
    """Send a whole answer, in the way that is worth it for its size."""
    data = exchange.altered(data)
    headers = {}
    if len(data) >= _GZIP_FROM and "gzip" in exchange.request.headers.get("accept-encoding", ""):
        data = gzip.compress(data, 1)
        headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    exchange.begin(200, None if len(data) > _CHUNKED_FROM else len(data), **headers)
    exchange.write(data)
    exchange.finish()


def _filter(request: Request, resource: Resource, namespace: str | None) -> _Filter:
    allowed = ("metadata.name", "metadata.namespace", *resource.fields)
    try:
        return _Filter(
            namespace,
            selectors.labels(request.query.get("labelSelector", "")),
            selectors.fields(request.query.get("fieldSelector", ""), allowed),
        )
    except selectors.BadSelectorError as error:
        raise RefusedError(Status(400, str(error))) from None


def _position(query: dict[str, str]) -> Position | None:
    token = query.get("continue", "")
    if not token:
        return None
    if query.get("resourceVersion"):
        raise RefusedError(Status(400, "specifying resource version is not allowed when using continue"))
    try:
        return Position.of(token)
    except BadTokenError:
        raise RefusedError(Status(400, "continue key is not valid")) from None


def _check_watch(query: dict[str, str], *, initial: bool) -> None:
    match = query.get("resourceVersionMatch", "")
    if initial and match != "NotOlderThan":
        raise RefusedError(_forbidden("sendInitialEvents", "it requires resourceVersionMatch=NotOlderThan"))
    if match and "sendInitialEvents" not in query:
        raise RefusedError(_forbidden("resourceVersionMatch", "for watch unless sendInitialEvents is provided"))
    if query.get("continue"):
        raise RefusedError(Status(400, "continue can't be used with watch"))


def _forbidden(name: str, why: str) -> Status:
    return Status(422, f'ListOptions.meta.k8s.io "" is invalid: {name}: Forbidden: {why}')


def _version(text: str) -> int:
    if not text:
        return 0
    try:
        return int(text)
    except ValueError:
        raise RefusedError(Status(400, f'Invalid value: "{text}": strconv.ParseUint: invalid syntax')) from None


def _too_old(version: str, current: int) -> Status:
    return Status(410, f"too old resource version: {version} ({current})")
