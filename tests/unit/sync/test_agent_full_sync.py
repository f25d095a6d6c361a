"""The agent reads its tables back every hour, however often other changes have it sync in between."""

import threading
from collections.abc import Callable
from itertools import pairwise

import pytest

from nodeproxy.kube.addresses import Family
from nodeproxy.report.journal import SyncResult
from nodeproxy.sync.agent import Agent, AgentOptions
from nodeproxy.sync.runner import Intervals

from .running import SETTINGS, WEB, Journal, Speaking
from .support import NODE, service


class Timetable:
    """A clock whose time passes only while somebody waits, and what happens when."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.events: list[tuple[float, Callable[[], None]]] = []
        self._waits = 0

    def now(self) -> float:
        return self.time

    def wait(self, event: threading.Event, timeout: float) -> None:
        self._waits += 1
        assert self._waits < 1000, "the loop spins"
        assert timeout > 0
        if event.is_set():
            return
        self.time += timeout
        if self.events and self.events[0][0] <= self.time:
            self.time, action = self.events.pop(0)
            action()


class Dated(Journal):
    """Notes when each full sync of IPv4 was."""

    def __init__(self, clock: Timetable) -> None:
        super().__init__()
        self._clock = clock
        self.full: list[float] = []
        self.partial: list[float] = []

    def synced(self, result: SyncResult) -> None:
        if result.family is Family.IPV4:
            (self.full if result.full else self.partial).append(self._clock.time - 1000.0)


@pytest.mark.usefixtures("namespace")
def test_full_syncs_are_an_hour_apart_though_others_come_in_between() -> None:
    """Counted from the last sync of any kind, the next full one would be put off again and again."""
    clock, source = Timetable(), Speaking(*WEB)
    journal = Dated(clock)
    agent = Agent(source, AgentOptions(NODE, SETTINGS, Intervals(1.0, 30.0, 3600.0)), journal, clock)

    def change(host: int) -> Callable[[], None]:
        return lambda: source.sink.apply([service("late", host)])

    clock.events = [(1000.0 + 3500.0 * n, change(20 + n)) for n in range(1, 6)]
    clock.events.append((1000.0 + 18_100.0, agent.stop))
    agent.run()
    assert journal.full == [0.0, 3600.0, 7200.0, 10_800.0, 14_400.0, 18_000.0]
    assert journal.partial == [3500.0, 7000.0, 10_500.0, 14_000.0, 17_500.0]
    assert {later - sooner for sooner, later in pairwise(journal.full)} == {3600.0}
