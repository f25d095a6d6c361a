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

from nodeproxy.kube.backoff import Backoff, BriefWatchError
from nodeproxy.kube.demands import Demands
from nodeproxy.kube.inventory import Inventory, Listing
from nodeproxy.kube.pulse import Pulse
from nodeproxy.kube.resources import Resource
from nodeproxy.kube.source import Change, Problem, SourceHealth
from nodeproxy.kube.streams import Bookmark, Lines, Page, StreamError, read_bookmark, read_event, read_page
from nodeproxy.kube.timings import Timings
from nodeproxy.kube.transport import Answer, RequestError, StatusError, Transport, UnreachableError, read_status

_log = structlog.get_logger(__name__)

_NOT_SERVED = {403, 404, 405}


class Reflector:
    """Follows one resource. :meth:`run` is for one thread; the rest may be called from any.

    Args:
        resource: what to follow.
        transport: sends requests.
        timings: how long to wait.
        jitter: makes pauses differ from node to node.
        deliver: takes changes that belong together.
        complete: called when a list has been delivered.
        reached: called when the API server answers again after it had not.
    """

    def __init__(
        self,
        resource: Resource,
        transport: Transport,
        timings: Timings,
        jitter: random.Random,
        deliver: Callable[[Sequence[Change], Sequence[Problem]], None],
        complete: Callable[[], None],
        reached: Callable[[], None],
    ) -> None:
        self.resource = resource
        self._transport = transport
        self._timings = timings
        self._jitter = jitter
        self._deliver = deliver
        self._complete = complete
        self._reached = reached
        self._inventory = Inventory(resource.kind, resource.path)
        self._demands = Demands(resource)
        self._backoff = Backoff(timings, jitter)
        self._pulse = Pulse()
        self._version = ""  # where the watch goes on; empty: list first
        self._newest = 0  # the newest version so far, as far as versions are numbers
        self._page_next_list = False
        self._answer: Answer | None = None
        self._unanswered = False
        self._woken = threading.Event()
        self._pending: list[Change] = []
        self._problems: list[Problem] = []

    def run(self, stopping: threading.Event) -> None:
        """List and watch until told to stop, whatever happens."""
        while not stopping.is_set():
            self._woken.clear()
            try:
                if self._pending:
                    self._tell(())  # what the sink did not take the last time
                if self._version:
                    self._watch()
                else:
                    self._list()
            except Exception as error:
                if stopping.is_set():
                    return
                self._failed(error, stopping)

    def wake(self) -> None:
        """The API server answers: end a pause that was made because it did not."""
        self._woken.set()

    def abort(self) -> None:
        """End the answer that is being read."""
        answer = self._answer
        if answer is not None:
            answer.abort()

    def is_silent(self) -> bool:
        """Whether nothing has come for longer than it may, though something is waited for."""
        return self._pulse.is_silent()

    def health(self) -> SourceHealth:
        """How well the resource is followed."""
        return self._pulse.health(self.resource.kind, self._inventory.left_out)

    # --- lists -----------------------------------------------------------------------------------------------------

    def _list(self) -> None:
        """Read everything; where that is a stream, go on watching on it."""
        paged, self._page_next_list = self._page_next_list, False
        if self._demands.streams_lists and not paged:
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
        with self._asking(self._demands.page(rest, limit=limit), compressed=True) as answer:
            pieces = []
            for piece in answer.chunks():
                self._pulse.hear()
                pieces.append(piece)
        return read_page(b"".join(pieces))

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
        self._pulse.lists += 1
        self._page_next_list = False
        self._tell(changes)
        self._complete()
        # Only now: had the sink not taken it, all would have to be listed again.
        self._version = version
        self._newest = _number(version)
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
        seconds = self._jitter.uniform(*self._timings.watch)
        demands = self._demands
        query = demands.watch(self._version, seconds) if listing is None else demands.streamed_list(seconds)
        started = time.monotonic()
        lines = Lines()
        quiet = True
        with self._asking(query) as answer:
            if listing is None:
                self._begin_watch(answer)
            else:
                self._page_next_list = True  # should this come to nothing
            for chunk in answer.chunks():
                self._pulse.hear()
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
                    self._backoff.settled()
        if listing is not None:
            msg = "the stream ended before everything had come"
            raise UnreachableError(msg)
        lasted = time.monotonic() - started
        if quiet and lasted < self._timings.brief:
            msg = "the watch was ended at once"
            raise BriefWatchError(msg)
        if lasted > self._timings.steady:
            self._backoff.settled()

    def _begin_watch(self, answer: Answer) -> None:
        """Everything has been listed, and what comes now are changes."""
        limit = self._timings.silence
        self._pulse.wait(limit)
        answer.allow_silence(limit)
        if self._pulse.interruptions and not self._pulse.follows:
            _log.info("followed again", resource=self.resource.path)
        self._pulse.set(follows=True, detail="")

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
            self._demands.streams_lists = False
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

    @contextmanager
    def _asking(self, query: dict[str, str], *, compressed: bool = False) -> Iterator[Answer]:
        """A request whose answer :meth:`abort` can end; one may be made while another's answer is being read."""
        answer_before, limit_before = self._answer, self._pulse.waiting
        limit = self._timings.answer
        self._pulse.wait(limit)
        try:
            with self._transport.get(self.resource.path, query, limit, compressed=compressed) as answer:
                self._answer = answer
                if self._unanswered:
                    self._unanswered = False
                    self._reached()
                yield answer
        finally:
            self._answer = answer_before
            self._pulse.wait(limit_before)

    def _tell(self, changes: Sequence[Change]) -> None:
        """Hand over changes, and problems if they are others than before; what can't be is with the next ones."""
        self._pending += changes
        problems = self._inventory.problems
        if self._pending or problems != self._problems:
            self._deliver(self._pending, problems)
        self._pending = []
        self._problems = problems

    # --- failures ----------------------------------------------------------------------------------------------------

    def _failed(self, error: Exception, stopping: threading.Event) -> None:
        """Take note of a failure, and pause."""
        if isinstance(error, StatusError):
            if error.status in _NOT_SERVED and self.resource.optional:
                self._absent(str(error), stopping)
                return
            if self._demands.concede(error, listing=not self._version):
                _log.info("asking the API server for less", resource=self.resource.path, reason=error.message)
                return
        if self._backoff.must_list(error):
            self._version = ""
        pause = self._backoff.failed(error)
        self._pulse.interruptions += 1
        self._pulse.set(follows=False, detail=str(error))
        log = _log.warning if isinstance(error, (RequestError, StreamError)) else _log.exception
        log(
            "following interrupted",
            resource=self.resource.path,
            error=str(error),
            kind=type(error).__name__,
            failures=self._backoff.failures,
            retry_seconds=round(pause, 2),
        )
        self._unanswered = isinstance(error, UnreachableError)
        (self._woken if self._unanswered else stopping).wait(pause)

    def _absent(self, reason: str, stopping: threading.Event) -> None:
        """Go on without an optional resource, and ask for it now and then."""
        if self._pulse.detail != reason:
            _log.info("resource not served", resource=self.resource.path, reason=reason)
        if not self._pulse.lists:
            self._complete()
        self._pulse.set(follows=True, detail=reason)
        self._backoff.settled()
        stopping.wait(self._timings.absent * self._jitter.uniform(0.5, 1.0))


def _number(version: str) -> int:
    return int(version) if version.isascii() and version.isdecimal() else 0
