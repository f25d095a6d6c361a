"""Programs that end with this process, however it ends, and folders that the next one clears away."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from netns.namespaces import Namespace

_TAIL = 30
_DYING = 60.0
"""Seconds that a process may take to go once it is killed. Half a minute has been seen: a busy Linux (6.18) may let it
wait for that long until its inotify is given up (fsnotify_destroy_group)."""
_BRIEF = 400


class ProgramError(RuntimeError):
    """A program ended, or did not become ready in time; the message holds the last lines of its log."""


class Keeper:
    """Starts programs from a thread of its own.

    The kernel kills a program once the thread that started it ends (PR_SET_PDEATHSIG), not only with the process:
    so no thread of a test may be the one.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "keeper")

    def start(self, namespace: Namespace, argv: Sequence[str | Path], log: Path) -> "subprocess.Popen[str]":
        """Start a program in a namespace and a session of its own (Ctrl-C is not for it), adding to a log."""

        def start() -> "subprocess.Popen[str]":
            with log.open("a") as file:
                return namespace.start("setsid", *map(str, argv), stdout=file, stderr=subprocess.STDOUT)

        return self._thread.submit(start).result()

    def close(self) -> None:
        """End the thread; programs that still run are killed by that."""
        self._thread.shutdown()


class Program:
    """A program that can be stopped and started again.

    Args:
        name: for messages, and of its log.
        keeper: starts it.
        namespace: where it runs.
        argv: its command line.
        folder: for its log.

    Attributes:
        argv: its command line; a changed one counts from the next start.
        log: what it writes, of all its runs.
    """

    def __init__(
        self, name: str, keeper: Keeper, namespace: Namespace, argv: Sequence[str | Path], folder: Path
    ) -> None:
        self.name = name
        self.argv = argv
        self.log = folder / f"{name}.log"
        self._keeper = keeper
        self._namespace = namespace
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Its process.

        Raises:
            ProgramError: it does not run.
        """
        self.check()
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, unless it runs."""
        if not self.running:
            self._process = self._keeper.start(self._namespace, self.argv, self.log)

    def stop(self, number: signal.Signals = signal.SIGTERM, patience: float = 20) -> None:
        """End it, with SIGKILL after some seconds of patience, and wait for its end."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            process.wait(_DYING if number == signal.SIGKILL else patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_DYING)

    def check(self) -> None:
        """Raise if it ended by itself.

        Raises:
            ProgramError: it did, or was never started.
        """
        if self._process is None:
            raise ProgramError(f"{self.name} does not run")
        if self._process.poll() is not None:
            raise ProgramError(f"{self.name} ended with exit code {self._process.returncode}:\n{self.tail()}")

    def tail(self, lines: int = _TAIL) -> str:
        """The last lines of its log, with what was cut."""
        try:
            found = self.log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            found = []
        cut = [line if len(line) <= _BRIEF else f"{line[:_BRIEF]}…" for line in found[-lines:]]
        return "\n".join(f"    {line}" for line in cut) or "    (it wrote nothing)"


class Deadline:
    """A wait that ends in time, or with the program that is waited for."""

    def __init__(self, seconds: float, what: str, program: Program) -> None:
        self._end = time.monotonic() + seconds
        self._seconds = seconds
        self._what = what
        self._program = program

    def pause(self, why: object = "") -> None:
        """Wait a moment before the next look.

        Args:
            why: what the last look showed.

        Raises:
            ProgramError: the program ended, or time is up.
        """
        self._program.check()
        if time.monotonic() > self._end:
            reason = f" ({why})" if why else ""
            msg = f"{self._what}: not within {self._seconds:.0f} s{reason}; the log of {self._program.name} ends:\n"
            raise ProgramError(msg + self._program.tail())
        time.sleep(0.05)


class Scratch:
    """A folder that is removed when closed, or else by the next one made: a lock on it tells whether it is in use.

    Attributes:
        path: the folder.
    """

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir()) / f"nodeproxy-cluster-{_user()}"
        parent.mkdir(mode=0o700, exist_ok=True)
        if parent.stat().st_uid != os.getuid():
            raise ProgramError(f"{parent} belongs to another user")
        with _locked(parent):
            _sweep(parent)
            self.path = Path(tempfile.mkdtemp(dir=parent))
            self._lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove it. Does nothing the second time."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _user() -> int:
    """This process's user outside of the user namespace that it may be in, where all are root."""
    inside, outside, _ = map(int, Path("/proc/self/uid_map").read_text().split()[:3])
    return os.getuid() - inside + outside


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sweep(parent: Path) -> None:
    for folder in parent.iterdir():
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # just removed by its owner
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
