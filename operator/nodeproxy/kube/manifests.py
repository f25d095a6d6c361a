"""A folder of manifests as a source of objects: needs no cluster, and serves demos, tests and ``render``."""

import os
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
from watchfiles._rust_notify import RustNotify

from nodeproxy.kube.manifest_reader import ManifestReader
from nodeproxy.kube.objects import KINDS, KubeObject
from nodeproxy.kube.source import ObjectKey, Problem, Sink, SourceError, SourceHealth

# Events are waited for this long after the last and the first of a batch, in milliseconds.
_STEP_MS = 10
_DEBOUNCE_MS = 50
# How often it is checked that the folder is still the same one, and what is reached over symlinks.
_TICK_MS = 200
# A new directory may fill before it is watched, so the folder is looked through once more after this many seconds.
_RECHECK_SECONDS = 0.5
_MANY_EVENTS = 2_000
_FIRST_BACKOFF_SECONDS = 0.2
_MAX_BACKOFF_SECONDS = 5.0
_STOP_SECONDS = 2.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a folder or file of manifests holds.

    Attributes:
        objects: clean objects by key.
        problems: what was left out, sorted.
        ignored: how many objects of other kinds there are, by ``apiVersion kind``.
    """

    objects: dict[ObjectKey, KubeObject]
    problems: tuple[Problem, ...]
    ignored: Counter[str]


def load(path: Path) -> Loaded:
    """Read a folder of manifests, or one file of any name, once.

    Raises:
        SourceError: there is no such folder or file, or the folder cannot be listed.
    """
    path = _absolute(path)
    try:
        if path.is_dir():
            reader = ManifestReader(path)
            reader.rescan()
        else:
            path.stat()
            reader = ManifestReader(path.parent)
            reader.read(path.name)
    except OSError as error:
        raise _source_error(path, error) from None
    state = reader.state
    state.delivered(state.changes())
    return Loaded(state.objects, tuple(state.problems), state.ignored)


class ManifestFolder:
    """A source that reads a folder of manifests and follows every change in it.

    It keeps what it knows when the folder vanishes, reports that, and goes on when the folder is back.

    Args:
        path: the folder.
        rescan_seconds: how often all of it is looked through, should an event have been missed.
    """

    def __init__(self, path: Path, *, rescan_seconds: float = 60.0) -> None:
        self._path = _absolute(path)
        self._rescan_seconds = rescan_seconds
        self._stopping = threading.Event()
        self._reader = ManifestReader(self._path, self._stopping.is_set)
        self._thread: threading.Thread | None = None
        self._completed = False
        self._reported: list[Problem] | None = None
        self._trouble = ""
        self._turned = time.monotonic()
        self._heard: float | None = None
        self._interruptions = 0

    def __str__(self) -> str:
        return str(self._path)

    def start(self, sink: Sink) -> None:
        """Begin to deliver to ``sink``, from a thread of its own.

        Raises:
            SourceError: the folder does not exist, is not a directory, or was started before.
        """
        if self._thread is not None:
            msg = f"{self._path} is followed already"
            raise SourceError(msg)
        try:
            with _held(self._path):
                pass
        except OSError as error:
            raise _source_error(self._path, error) from None
        self._thread = threading.Thread(target=self._run, args=(sink,), name="manifests", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and return when nothing more will be delivered, but after 2 s at the latest."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)

    def health(self) -> Sequence[SourceHealth]:
        """Whether the folder is followed now."""
        now = time.monotonic()
        thread = self._thread
        alive = thread is not None and thread.is_alive()
        detail = self._trouble or ("" if self._completed else "not read yet")
        return [
            SourceHealth(
                name=str(self._path),
                healthy=alive and not detail,
                detail=detail,
                since=now - self._turned,
                heard=None if self._heard is None else now - self._heard,
                interruptions=self._interruptions,
                lists=int(self._completed),
                left_out=sum(problem.fatal and not problem.kept for problem in self._reported or ()),
            )
        ]

    def addresses(self) -> Collection[str]:
        """None: a folder is not reached over a network that this node serves."""
        return ()

    def _run(self, sink: Sink) -> None:
        """Follow the folder, whatever happens, until told to stop."""
        backoff = _FIRST_BACKOFF_SECONDS
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                self._follow(sink)
                continue
            except (FileNotFoundError, NotADirectoryError) as error:
                backoff = _FIRST_BACKOFF_SECONDS
                trouble = f"cannot be followed: {error.strerror}"
            except OSError as error:
                trouble = f"cannot be followed: {error.strerror or error}"
            except Exception as error:  # Whatever it is, it must not end the watch.
                _log.exception("following the folder of manifests failed", folder=str(self._path))
                trouble = f"following it failed ({type(error).__name__}: {error}) and is tried again"
            if not self._trouble:
                self._turned = time.monotonic()
            self._trouble = trouble
            self._interruptions += 1
            try:
                self._report(sink, trouble)
            except Exception:
                _log.exception("reporting a problem failed", folder=str(self._path), problem=trouble)
            if time.monotonic() - started > _MAX_BACKOFF_SECONDS:
                backoff = _FIRST_BACKOFF_SECONDS
            self._stopping.wait(backoff)
            backoff = min(2 * backoff, _MAX_BACKOFF_SECONDS)

    def _follow(self, sink: Sink) -> None:
        """Deliver what the folder holds, then its changes; returns when another folder has taken its place."""
        with _held(self._path) as identity, _watcher(self._path) as watcher:
            self._reader.rescan()
            self._deliver(sink)
            next_rescan = time.monotonic() + _RECHECK_SECONDS
            while True:
                events = watcher.watch(_DEBOUNCE_MS, _STEP_MS, _TICK_MS, self._stopping)
                if self._stopping.is_set():
                    return
                paths = {path for _, path in events} if isinstance(events, set) else set()
                if str(self._path) in paths or _identity(self._path) != identity:
                    return
                now = time.monotonic()
                if len(paths) > _MANY_EVENTS or now >= next_rescan or (not paths and self._reader.links_changed()):
                    self._reader.rescan(paths)
                    # Once more soon if this was for a reason, to see what came while directories were not yet watched.
                    next_rescan = now + (_RECHECK_SECONDS if paths else self._rescan_seconds)
                elif not paths:
                    continue
                elif self._reader.update(paths):
                    next_rescan = min(next_rescan, now + _RECHECK_SECONDS)
                self._deliver(sink)

    def _deliver(self, sink: Sink) -> None:
        if self._stopping.is_set():
            return
        if self._trouble or not self._completed:
            self._turned = time.monotonic()
        self._trouble, self._heard = "", time.monotonic()
        state = self._reader.state
        changes = state.changes()
        if changes or not self._completed:
            sink.apply(changes)
        state.delivered(changes)
        if not self._completed:
            for kind in KINDS:
                sink.complete(kind)
            self._completed = True
            if state.ignored:
                counts = dict(sorted(state.ignored.items()))
                _log.info("objects of other kinds ignored", folder=str(self._path), counts=counts)
        self._report(sink)

    def _report(self, sink: Sink, trouble: str = "") -> None:
        problems = self._reader.state.problems
        if trouble:
            problems.insert(0, Problem(str(self._path), "", "", trouble, fatal=True, kept=self._completed))
        if problems != self._reported and not self._stopping.is_set():
            sink.report(problems)
            self._reported = problems


def _absolute(path: Path) -> Path:
    # Not resolved: when the path is a symlink, it is followed to wherever it leads at the time.
    return Path(os.path.abspath(path))  # noqa: PTH100


def _identity(path: Path | int) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 -- takes descriptors too
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextmanager
def _held(path: Path) -> Iterator[tuple[int, int] | None]:
    """The identity of a directory, which no other can get as long as this one is held open.

    Raises:
        OSError: there is no such directory.
    """
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _identity(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _watcher(path: Path) -> Iterator[RustNotify]:
    # The class below watchfiles.watch(): it watches from its creation on, so a scan after that misses nothing.
    watcher = RustNotify([str(path)], False, False, 0, True, True)
    try:
        yield watcher
    finally:
        watcher.close()


def _source_error(path: Path, error: OSError) -> SourceError:
    return SourceError(f"{path}: {error.strerror or error}")
