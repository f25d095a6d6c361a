"""List and watch of one kind of objects, for ever: what the API server has, the sink has.

The first list is streamed where the API server can (KEP-3157: the initial objects come as events of the watch that
goes on after them), and else read in pages. All lists ask for the most recent state, none for "any". A watch goes on
from the version of the last object or bookmark that came; when that is too old, everything is listed anew, and what
the list does not hold is gone.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from nodeproxy.kube.inventory import Inventory, Listing
from nodeproxy.kube.resources import Resource
from nodeproxy.kube.source import Change, Problem, SourceHealth
from nodeproxy.kube.streams import Bookmark, Lines, Page, StreamError, read_bookmark, read_event, read_page
from nodeproxy.kube.timings import Timings
from nodeproxy.kube.transport import (
    Answer,
    RequestError,
    SilenceError,
    StatusError,
    Transport,
    UnreachableError,
    read_status,
)

_log = structlog.get_logger(__name__)

_NOT_SERVED = {403, 404, 405}
_NOT_UNDERSTOOD = {400, 422}
_REFUSALS_BEFORE_LISTING = 3
_SLACK = 1.2  # by so much more than allowed may be waited, as the socket's own timeout should come first


class _BriefWatchError(RequestError):
    """A watch that the API server ends at once."""


class Reflector:
    """Follows one resource. :meth:`run` is for one thread; the rest may be called from any.

    Args:
        resource: what to follow.
        transport: sends requests.
        timings: how long to wait.
        jitter: makes pauses differ from node to node.
        deliver: takes changes that belong together.
        complete: called when a list has been delivered.
    """

    def __init__(
        self,
        resource: Resource,
        transport: Transport,
        timings: Timings,
        jitter: random.Random,
        deliver: Callable[[Sequence[Change], Sequence[Problem]], None],
        complete: Callable[[], None],
    ) -> None:
        self.resource = resource
        self._transport = transport
        self._timings = timings
        self._jitter = jitter
        self._deliver = deliver
        self._complete = complete
        self._inventory = Inventory(resource.kind, resource.path)
        self._problems: list[Problem] = []
        self._version = ""  # where the watch goes on; empty: list first
        self._newest = 0  # the newest version so far, as far as versions are numbers
        self._wishes = dict(resource.wishes)
        self._streams_lists = True
        self._page_next_list = False
        self._failures = 0
        self._refusals = 0
        self._answer: Answer | None = None
        self._asked: float | None = None  # when something was last asked for or heard; None: nothing is waited for
        self._limit = timings.answer
        self._pending: list[Change] = []
        self._follows = False
        self._detail = "not read yet"
        self._turned = time.monotonic()
        self._heard: float | None = None
        self._interruptions = 0
        self._lists = 0

    def run(self, stopping: threading.Event) -> None:
        """List and watch until told to stop, whatever happens."""
        while not stopping.is_set():
            try:
                if self._version:
                    self._watch()
                else:
                    self._list()
            except Exception as error:
                if stopping.is_set():
                    return
                self._failed(error, stopping)

    def abort(self) -> None:
        """End the answer that is being read."""
        answer = self._answer
        if answer is not None:
            answer.abort()

    def is_silent(self) -> bool:
        """Whether nothing has come for longer than it may, though something is waited for."""
        asked = self._asked
        return asked is not None and time.monotonic() - asked > _SLACK * self._limit

    def health(self) -> SourceHealth:
        """How well the resource is followed."""
        now = time.monotonic()
        silent = self.is_silent()
        return SourceHealth(
            name=self.resource.kind,
            healthy=self._follows and not silent,
            detail="nothing is heard of it" if silent else self._detail,
            since=now - self._turned,
            heard=None if self._heard is None else now - self._heard,
            interruptions=self._interruptions,
            lists=self._lists,
            left_out=self._inventory.left_out,
        )

    # --- lists -----------------------------------------------------------------------------------------------------

    def _list(self) -> None:
        """Read everything; where that is a stream, go on watching on it."""
        paged, self._page_next_list = self._page_next_list, False
        if self._streams_lists and not paged:
            self._watch(Listing())
        else:
            self._replace(*self._read_pages())

    def _read_pages(self) -> tuple[Listing, str]:
        """All pages of a list, and the version of it."""
        listing, version, rest, limit = Listing(), "", "", True
        while True:
            try:
                page = self._read_page(rest, limit=limit)
            except StatusError as error:
                if not (error.expired and rest):
                    raise
                # Changes came faster than pages: all at once then.
                listing, rest, limit = Listing(), "", False
                continue
            self._inventory.add(listing, page.items or ())
            version = page.version
            rest = page.next
            if not rest:
                return listing, version

    def _read_page(self, rest: str, *, limit: bool) -> Page:
        query = self._selection()
        if limit:
            query["limit"] = "500"
        if rest:
            query["continue"] = rest
        with self._asking(query, compressed=True) as answer:
            body = answer.body()
        self._hear()
        return read_page(body)

    def _replace(self, listing: Listing, version: str, *, streamed: bool = False) -> bool:
        """Take a list for what there is, once it is beyond doubt.

        Returns:
            whether it was this one that was taken, and not one that was to confirm it.
        """
        doubt = self._inventory.doubtful(listing, never_empty=self.resource.never_empty) or self._older(version)
        if doubt:
            _log.warning("list is confirmed by another", resource=self.resource.path, reason=doubt)
            listing, version = self._read_pages()
            streamed = False
        changes = self._inventory.replace(listing)
        self._lists += 1
        self._page_next_list = False
        self._tell(changes)
        self._version = version
        self._newest = _number(version)
        self._complete()
        _log.info(
            "listed",
            resource=self.resource.path,
            objects=len(self._inventory),
            changes=len(changes),
            by="stream" if streamed else "pages",
        )
        return not doubt

    def _older(self, version: str) -> str:
        """Why a list's version is doubtful. Versions of one resource can be compared as numbers (KEP-5504)."""
        if _number(version) < self._newest:
            return f"its version {version} is older than {self._newest}, which was seen before"
        return ""

    # --- watches -----------------------------------------------------------------------------------------------------

    def _watch(self, listing: Listing | None = None) -> None:
        """Follow changes until the API server ends the watch.

        Args:
            listing: an empty one: get everything that is there first, by the same stream.
        """
        query = self._selection()
        query |= {"watch": "true", "allowWatchBookmarks": "true"}
        query["timeoutSeconds"] = str(max(1, round(self._jitter.uniform(*self._timings.watch))))
        if listing is None:
            query["resourceVersion"] = self._version
        else:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        started = time.monotonic()
        lines = Lines()
        quiet = True
        with self._asking(query) as answer:
            if listing is None:
                self._begin_watch(answer)
            else:
                self._page_next_list = True  # should this come to nothing
            for chunk in answer.chunks():
                self._hear()
                complete = lines.feed(chunk)
                if listing is not None:
                    complete, bookmark = self._take_initial(listing, complete)
                    if bookmark is not None:
                        if not self._replace(listing, bookmark.version, streamed=True):
                            return  # the stream goes on from another version
                        listing, started = None, time.monotonic()
                        self._begin_watch(answer)
                if complete and listing is None:
                    self._take(complete)
                    quiet = False
                if not quiet or (listing is None and time.monotonic() - started > self._timings.steady):
                    self._failures = self._refusals = 0
        if listing is not None:
            msg = "the stream ended before everything had come"
            raise UnreachableError(msg)
        if quiet and time.monotonic() - started < self._timings.brief:
            msg = "the watch was ended at once"
            raise _BriefWatchError(msg)

    def _begin_watch(self, answer: Answer) -> None:
        """Everything has been listed, and what comes now are changes."""
        self._limit = self._timings.silence
        answer.allow_silence(self._limit)
        if not self._follows:
            if self._interruptions:
                _log.info("followed again", resource=self.resource.path)
            self._turned = time.monotonic()
        self._follows, self._detail = True, ""

    def _take_initial(self, listing: Listing, lines: list[bytes]) -> tuple[list[bytes], Bookmark | None]:
        """Take initial events into a list, up to the bookmark that ends them.

        Returns:
            the lines behind it, and the bookmark; None: it has not come yet.
        """
        for index, line in enumerate(lines):
            event = read_event(line)
            if event.type == "ERROR":
                raise read_status(event.object).error()
            if event.type != "BOOKMARK":
                self._inventory.add(listing, (event.object,))
                continue
            bookmark = read_bookmark(event.object)
            if bookmark.ends_initial_events:
                return lines[index + 1 :], bookmark
            # An API server that knows initial events sends no other bookmark before.
            self._streams_lists = False
            msg = "the API server does not stream lists"
            raise StreamError(msg)
        return [], None

    def _take(self, lines: list[bytes]) -> None:
        """Take events, and hand over what they change as one batch."""
        changes: list[Change] = []
        try:
            for line in lines:
                event = read_event(line)
                if event.type == "ERROR":
                    raise read_status(event.object).error()
                if event.type == "BOOKMARK":
                    self._reach(read_bookmark(event.object).version)
                    continue
                change, version = self._inventory.take(event.type, event.object)
                if change is not None:
                    changes.append(change)
                self._reach(version)
        finally:
            self._tell(changes)

    def _reach(self, version: str) -> None:
        if version:
            self._version = version
            self._newest = max(self._newest, _number(version))

    # --- both --------------------------------------------------------------------------------------------------------

    def _selection(self) -> dict[str, str]:
        return {**self.resource.selectors, **self._wishes}

    @contextmanager
    def _asking(self, query: dict[str, str], *, compressed: bool = False) -> Iterator[Answer]:
        """A request whose answer :meth:`abort` can end; one may be made while another's answer is being read."""
        before = self._answer, self._limit
        self._limit = self._timings.answer
        self._asked = time.monotonic()
        try:
            with self._transport.get(self.resource.path, query, self._limit, compressed=compressed) as answer:
                self._answer = answer
                yield answer
        finally:
            self._answer, self._limit = before
            self._asked = None if self._answer is None else time.monotonic()

    def _hear(self) -> None:
        self._heard = self._asked = time.monotonic()

    def _tell(self, changes: Sequence[Change]) -> None:
        """Hand over changes, and problems if they are others than before; what can't be is with the next ones."""
        self._pending += changes
        problems = self._inventory.problems
        if self._pending or problems != self._problems:
            self._deliver(self._pending, problems)
        self._pending = []
        self._problems = problems

    # --- failures ----------------------------------------------------------------------------------------------------

    def _absent(self, reason: str, stopping: threading.Event) -> None:
        """Go on without an optional resource, and ask for it now and then."""
        if self._detail != reason:
            _log.info("resource not served", resource=self.resource.path, reason=reason)
        if not self._lists:
            self._complete()
        self._turned = self._turned if self._follows else time.monotonic()
        self._follows, self._detail = True, reason
        self._failures = 0
        stopping.wait(self._timings.absent * self._jitter.uniform(0.5, 1.0))

    def _failed(self, error: Exception, stopping: threading.Event) -> None:
        """Take note of a failure, and pause."""
        if isinstance(error, StatusError):
            if error.status in _NOT_SERVED and self.resource.optional:
                self._absent(str(error), stopping)
                return
            if self._concede(error):
                return
        self._forget_version(error)
        if self._follows:
            self._turned = time.monotonic()
        self._follows = False
        self._detail = str(error)
        self._interruptions += 1
        pause = self._pause(error)
        self._failures += 1
        log = _log.warning if isinstance(error, (RequestError, StreamError)) else _log.exception
        log(
            "following interrupted",
            resource=self.resource.path,
            error=str(error),
            kind=type(error).__name__,
            failures=self._failures,
            retry_seconds=round(pause, 2),
        )
        stopping.wait(pause)

    def _pause(self, error: Exception) -> float:
        """Seconds to wait: anything up to a bound that doubles ("full jitter"), and what the API server asks for."""
        timings = self._timings
        if isinstance(error, SilenceError) and not self._failures:
            return 0.0  # long enough already
        bound = min(timings.most_backoff, timings.first_backoff * 2 ** min(self._failures, 30))
        pause = self._jitter.uniform(0, bound)
        asked = error.retry_after if isinstance(error, StatusError) else None
        return pause + min(asked, timings.most_wait) if asked else pause

    def _concede(self, error: StatusError) -> bool:
        """Ask for less next time if the API server does not understand what it was asked for.

        Returns:
            whether there is something less to ask for.
        """
        if error.status not in _NOT_UNDERSTOOD:
            return False
        about_fields = "field label" in error.message or "fieldSelector" in error.message
        if self._wishes and (about_fields or not self._streams_lists or self._version):
            self._wishes = {}
        elif self._streams_lists and not self._version and not about_fields:
            self._streams_lists = False
        else:
            return False
        _log.info("asking the API server for less", resource=self.resource.path, reason=error.message)
        return True

    def _forget_version(self, error: Exception) -> None:
        """Have everything listed anew where going on from the version can't work."""
        # Silence again and again may have a reason too: a watch from a version that the API server has yet to reach,
        # since it was restored from a backup, says nothing until then, not even by bookmarks.
        if isinstance(error, SilenceError) or (isinstance(error, StatusError) and error.status not in {429, 503}):
            self._refusals += 1
        lost = isinstance(error, StatusError) and error.expired
        known = isinstance(error, (UnreachableError, _BriefWatchError))
        broken = not known and not isinstance(error, StatusError)
        if lost or broken or self._refusals >= _REFUSALS_BEFORE_LISTING:
            self._version, self._refusals = "", 0


def _number(version: str) -> int:
    return int(version) if version.isascii() and version.isdecimal() else 0
