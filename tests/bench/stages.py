"""Clocks put around functions from outside; a stage's time is that which no stage within it takes."""

import functools
import inspect
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any


class Stages:
    """Seconds spent in each stage, over all threads: by the clock, and of a processor."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._all: list[tuple[Counter[str], Counter[str]]] = []
        self._undo: list[tuple[Any, str, Any]] = []

    def seconds(self) -> dict[str, float]:
        """The stages' seconds so far, by the clock."""
        return dict(sum((clock for clock, _ in self._all), Counter[str]()))

    def cpu_seconds(self) -> dict[str, float]:
        """The seconds of a processor that they took so far: less than the clock's where other programs are busy."""
        return dict(sum((cpu for _, cpu in self._all), Counter[str]()))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time within the ``with`` statement for a stage."""
        before = self._switch(name)
        try:
            yield
        finally:
            self._switch(before)

    def around(self, owner: Any, attribute: str, name: str) -> None:
        """Count a function's time for a stage, until :meth:`restore`.

        Args:
            owner: the class or module that has it.
            attribute: its name there.
            name: the stage.
        """
        original = getattr(owner, attribute)
        if inspect.isgeneratorfunction(original):
            msg = f"{attribute} is a generator: its work is done by whoever iterates"
            raise TypeError(msg)
        switch = self._switch

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            before = switch(name)
            try:
                return original(*args, **kwargs)
            finally:
                switch(before)

        self.replace(owner, attribute, timed)

    def around_methods(self, owner: type, name: str) -> None:
        """Count the time of all public methods of a class for a stage, until :meth:`restore`."""
        for attribute, value in list(vars(owner).items()):
            if isinstance(value, FunctionType) and not attribute.startswith("_"):
                self.around(owner, attribute, name)

    def replace(self, owner: Any, attribute: str, value: Callable[..., Any]) -> None:
        """Put a function in another's place, until :meth:`restore`."""
        self._undo.append((owner, attribute, getattr(owner, attribute)))
        setattr(owner, attribute, value)

    def restore(self) -> None:
        """Take all clocks away."""
        while self._undo:
            owner, attribute, value = self._undo.pop()
            setattr(owner, attribute, value)

    def _switch(self, name: str | None) -> str | None:
        """Go on in another stage; returns the one before (None: in none)."""
        now, busy = time.perf_counter(), time.thread_time()
        local = self._local
        try:
            counters, before = local.counters, local.name
        except AttributeError:
            counters, before = (Counter(), Counter()), None
            local.counters = counters
            self._all.append(counters)
        if before is not None:
            counters[0][before] += now - local.since
            counters[1][before] += busy - local.busy
        local.name, local.since, local.busy = name, now, busy
        return before
