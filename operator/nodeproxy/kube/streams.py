"""What lists and watches are made of: lines, events, bookmarks and pages. Pure; reads no socket."""

from typing import Literal

import msgspec

_LONGEST_LINE = 64 * 1024 * 1024  # bytes; the API server takes objects of some megabytes at most

EVENT_TYPES = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR")
EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]


class StreamError(Exception):
    """What came is not what a watch or a list is made of."""


class Lines:
    """Cuts a stream into lines, wherever its pieces begin and end."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete with this piece, without blank ones.

        Raises:
            StreamError: a line does not end.
        """
        end = chunk.rfind(b"\n")
        if end < 0:
            self._keep(chunk)
            return []
        whole = b"".join((*self._parts, chunk[:end])) if self._parts else chunk[:end]
        self._parts, self._size = [], 0
        self._keep(chunk[end + 1 :])
        return [line for line in whole.split(b"\n") if line.strip()]

    def _keep(self, part: bytes) -> None:
        if part:
            self._parts.append(part)
            self._size += len(part)
        if self._size > _LONGEST_LINE:
            msg = f"a line has more than {_LONGEST_LINE} bytes"
            raise StreamError(msg)


class Event(msgspec.Struct, frozen=True, gc=False):
    """metav1.WatchEvent, with its object left raw."""

    type: EventType
    object: msgspec.Raw


class _BookmarkAnnotations(msgspec.Struct, frozen=True, gc=False):
    initial_events_end: str | None = msgspec.field(name="k8s.io/initial-events-end", default=None)


class _VersionMeta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_version: str | None = None
    annotations: _BookmarkAnnotations | None = None


class _Versioned(msgspec.Struct, frozen=True, gc=False):
    metadata: _VersionMeta | None = None


class Bookmark(msgspec.Struct, frozen=True, gc=False):
    """A version that all events up to now are covered by.

    Attributes:
        version: resource version to go on from.
        ends_initial_events: everything that was there at the start has been sent (KEP-3157).
    """

    version: str
    ends_initial_events: bool


class _ListMeta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_version: str | None = None
    continue_: str | None = msgspec.field(name="continue", default=None)


class Page(msgspec.Struct, frozen=True, gc=False):
    """A list, or a page of one, with its items left raw."""

    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None

    @property
    def version(self) -> str:
        """Resource version of the list as a whole."""
        return self.metadata.resource_version or ""

    @property
    def next(self) -> str:
        """What to ask for the next page with; empty on the last one."""
        return self.metadata.continue_ or ""


_event = msgspec.json.Decoder(Event)
_versioned = msgspec.json.Decoder(_Versioned)
_page = msgspec.json.Decoder(Page)


def read_event(line: bytes) -> Event:
    """The event that a line of a watch holds.

    Raises:
        StreamError: it holds none.
    """
    try:
        return _event.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        msg = f"not a watch event: {error}"
        raise StreamError(msg) from None


def read_bookmark(raw: msgspec.Raw) -> Bookmark:
    """The bookmark that an event's object is; it may be anything else besides, or full of nulls.

    Raises:
        StreamError: it has no resource version.
    """
    try:
        metadata = _versioned.decode(raw).metadata
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        msg = f"not a bookmark: {error}"
        raise StreamError(msg) from None
    if metadata is None or not metadata.resource_version:
        msg = "a bookmark without a resource version"
        raise StreamError(msg)
    ends = metadata.annotations is not None and metadata.annotations.initial_events_end == "true"
    return Bookmark(metadata.resource_version, ends)


def version_of(raw: msgspec.Raw) -> str:
    """The resource version of an object; empty if none can be read."""
    try:
        metadata = _versioned.decode(raw).metadata
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return (metadata.resource_version or "") if metadata else ""


def read_page(body: bytes) -> Page:
    """A list, or a page of one.

    Raises:
        StreamError: it is none, or has no resource version.
    """
    try:
        page = _page.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        msg = f"not a list: {error}"
        raise StreamError(msg) from None
    if not page.version:
        msg = "a list without a resource version"
        raise StreamError(msg)
    return page
