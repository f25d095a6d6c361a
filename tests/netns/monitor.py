"""``nft monitor``: what is written to the ruleset of a namespace, line by line, with the time of arrival."""

import contextlib
import subprocess
import threading
import time
from types import TracebackType
from typing import NamedTuple, Self

from netns.namespaces import Namespace


class Line(NamedTuple):
    """A line that ``nft monitor`` printed.

    Attributes:
        at: when it arrived, in seconds of time.monotonic().
        text: the line.
    """

    at: float
    text: str


def declares(line: Line) -> bool:
    """Whether it is a table, set or map that is declared; what is there already may be, by who writes elements."""
    return line.text.startswith(("add table ", "add set ", "add map "))


class Monitor:
    """Records every change of a namespace's ruleset while its ``with`` statement lasts.

    A table of its own is written at the beginning and the end, so nothing that happens in between is missed.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._lines: list[Line] = []
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        self._process = self._namespace.start("nft", "monitor", stdout=subprocess.PIPE)
        self._thread = threading.Thread(target=self._read, name="nft monitor", daemon=True)
        self._thread.start()
        try:
            self._mark("monitor-begins")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def lines(self) -> list[Line]:
        """What was written until now, the monitor's own marks left out.

        Raises:
            TimeoutError: nft monitor no longer reports.
        """
        self._mark("monitor-reads")
        return [line for line in self._lines if "monitor-" not in line.text and not line.text.startswith("# new gen")]

    def wait_quiet(self, seconds: float, timeout: float = 15) -> None:
        """Wait until nothing has been written for so long, say because what went out of use is removed late.

        Raises:
            TimeoutError: it went on for longer than ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            lines = self.lines()
            now = time.monotonic()
            if now - max([self._begun, *(line.at for line in lines)]) >= seconds:
                return
            if now > deadline:
                msg = f"the ruleset is still written to after {timeout} s: {lines[-1:]}"
                raise TimeoutError(msg)
            time.sleep(0.1)

    def _mark(self, name: str) -> None:
        deadline = time.monotonic() + 5
        seen = self._count(name)
        while self._count(name) == seen:
            if time.monotonic() > deadline:
                msg = "nft monitor reports nothing"
                raise TimeoutError(msg)
            self._namespace.nft(f"add table inet {name}; delete table inet {name}")
            time.sleep(0.02)
        time.sleep(0.02)

    def _count(self, name: str) -> int:
        return sum(f"delete table inet {name}" in line.text for line in self._lines)

    def _read(self) -> None:
        if self._process.stdout is not None:
            with contextlib.suppress(ValueError):
                for text in iter(self._process.stdout.readline, ""):
                    self._lines.append(Line(time.monotonic(), text.rstrip()))

    def _stop(self) -> None:
        self._process.terminate()
        self._process.wait(5)
        self._thread.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()
