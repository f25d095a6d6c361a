"""A process and all that descend from it: memory and processor time, as the kernel counts them (proc(5))."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from bench import memory

_GONE = (FileNotFoundError, ProcessLookupError, LookupError)  # it ended while it was looked at
_NANOSECONDS = 1e9
_TICKS = os.sysconf("SC_CLK_TCK")


class Peak(NamedTuple):
    """The most memory that was seen, in KiB.

    Attributes:
        total: over the whole tree: the peaks (VmHWM) of all processes that were there at one moment. Of a child that is
            a copy of the process (fork without exec), only what it does not share; one that is about to become another
            program has all of its memory in common with the process, and does not count.
        own: the process's own part of it.
        children: the part of those that it started.
    """

    total: int
    own: int
    children: int


def members(pid: int) -> Iterator[int]:
    """The process and its descendants that are there now, itself first."""
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(*_GONE):
            for child in path.read_text().split():
                yield from members(int(child))


def resident(pid: int) -> int:
    """KiB that the processes of a tree have resident now, added up."""
    total = 0
    for member in members(pid):
        with suppress(*_GONE):
            total += memory.resident(member)
    return total


def cpu_seconds(pid: int) -> float:
    """Seconds of a processor that the processes of a tree have used, in user mode and in the kernel.

    Threads count to the nanosecond (``schedstat``, which ``stat`` rounds to ticks of 10 ms); children that have ended
    count in ticks. Take it where no threads end at the moment.
    """
    spent = 0.0
    for member in members(pid):
        for path in Path(f"/proc/{member}/task").glob("*/schedstat"):
            with suppress(*_GONE):
                spent += int(path.read_text().split()[0]) / _NANOSECONDS
        with suppress(*_GONE):
            spent += _ended_children(member)
    return spent


def _ended_children(pid: int) -> float:
    # The program's name, in brackets, may hold anything; cutime and cstime are the 16th and 17th field.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / _TICKS


class Watch:
    """Looks at the memory of a process tree every few milliseconds, while its ``with`` statement lasts.

    Children live for seconds or for milliseconds: one that nobody looked at in its last moments had more than was seen.

    Args:
        pid: the process.
        interval: seconds between looks.
    """

    def __init__(self, pid: int, interval: float = 0.02) -> None:
        self._pid, self._interval = pid, interval
        self._own = self._children = self._total = 0
        self._copies: set[int] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(10)

    def peak(self) -> Peak:
        """The most so far."""
        for _ in range(2):  # the second look tells what stays from what passes
            self._once()
            time.sleep(self._interval)
        with self._lock:
            return Peak(self._total, self._own, self._children)

    def _look(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            self._once()
            # A machine under load is not loaded further by the looking.
            self._ended.wait(max(self._interval, 4 * (time.monotonic() - began)))

    def _once(self) -> None:
        with self._lock:
            self._look_at_all()

    def _look_at_all(self) -> None:
        own = children = 0
        program, copies = "", set()
        for member in members(self._pid):
            with suppress(*_GONE):
                path = str(Path(f"/proc/{member}/exe").readlink())
                if member == self._pid:
                    program, own = path, memory.peak(member)
                elif path != program:
                    children += memory.peak(member)
                else:
                    copies.add(member)
                    if member in self._copies:  # it stays one
                        children += memory.private(member)
        self._copies = copies
        if own + children > self._total:
            self._total, self._own, self._children = own + children, own, children
