"""Performance: what libnftables is asked for, and how often the table is written."""

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from netns.namespaces import Namespace
from nodeproxy.kernel import nft as module
from nodeproxy.ruleset.render import TABLE
from nodeproxy.sync.agent import Agent, AgentOptions
from nodeproxy.sync.runner import Intervals, Runner, SystemClock
from unit.sync.running import SETTINGS, WEB, Journal, Speaking, eventually, holds, working
from unit.sync.support import NODE, V4, V6, Table, endpoints, gone, service, shop

pytestmark = pytest.mark.usefixtures("namespace")


# --- C06: nothing is listed -------------------------------------------------------------------------------------------


class Recording:
    """A libnftables context that keeps what it is asked."""

    asked: list[str]
    real: Any

    def __init__(self) -> None:
        self._context = Recording.real()

    def cmd(self, text: str) -> Any:
        Recording.asked.append(text)
        return self._context.cmd(text)

    def cmd_from_file(self, name: str) -> Any:
        Recording.asked.append(Path(name).read_text())
        return self._context.cmd_from_file(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that libnftables is asked."""
    Recording.asked, Recording.real = [], staticmethod(module._new_context)
    monkeypatch.setattr(module, "_new_context", Recording)
    return Recording.asked


LISTS = re.compile(r"^\s*(list|get|export|monitor|reset)\b.*", re.MULTILINE)


def test_c06_library_is_never_asked_to_list(namespace: Namespace, asked: list[str]) -> None:
    """kubernetes/kubernetes#137501, #137536, #126013: a listing holds all elements, and costs seconds and memory.

    From start over changes, errors, foreign changes and an audit, nothing but its version is asked of libnftables.
    """
    source = Speaking(*shop())
    options = AgentOptions(NODE, SETTINGS, Intervals(minimum=0.0, retry=0.05, maximum=0.5))
    journal = Journal()
    agent = Agent(source, options, journal)
    with working(agent, journal, source):
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.7"), 20)
        source.sink.apply([endpoints("one", [5]), gone("Service", "many")])
        eventually(lambda: not holds(namespace, "cluster-ips", "10.96.0.3"), 20)
        namespace.run("nft", "flush", "set", "ip", TABLE, "cluster-ips")
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.7"), 20)
        before = len(journal.results)
        eventually(lambda: sum(result.full for result in journal.results[before:]) >= 2, 20)
        source.sink.apply([endpoints("one", [6])])
        eventually(lambda: holds(namespace, f"service-{_base(namespace, 'one')}", "10.244.0.6", kind="chain"), 20)
    listings = [found[0] for text in asked for found in LISTS.finditer(text)]
    assert listings == ["list flowtables ip"], "for its version, at the start"
    assert len(asked) > 5


def _base(namespace: Namespace, name: str) -> str:
    """What stands behind the prefix in the name of a Service's chain."""
    found = re.search(rf"chain service-(\S+-ns/{name}/tcp/) ", namespace.run("nft", "list", "chains", "ip"))
    return found[1] if found else "nowhere"


def test_c06_audit_of_a_table_as_it_should_be_reads_dumps_and_asks_the_library_nothing(asked: list[str]) -> None:
    """kubernetes/kubernetes#137536, #126013: to compare the table needs no listing, and writes nothing."""
    services = [service(f"s{number}", number) for number in range(1, 250)]
    table = Table(*services, *(endpoints(f"s{number}", range(1, 11)) for number in range(1, 250)))
    table.sync()
    asked.clear()
    table.clock.time = table.proxier.full_sync_due()
    assert table.sync() == []
    assert table.last.full
    assert asked == []


# --- C08: how often ---------------------------------------------------------------------------------------------------


class Played:
    """Time that passes only while somebody waits for it, or for what happens first."""

    def __init__(self, happens: dict[float, Any]) -> None:
        self.time = 0.0
        self.happens = sorted(happens.items())

    def now(self) -> float:
        return self.time

    def wait(self, event: threading.Event, timeout: float) -> None:
        until = self.time + timeout
        while self.happens and self.happens[0][0] <= until and not event.is_set():
            self.time, action = self.happens.pop(0)
            action()
        if not event.is_set():
            self.time = until


def test_c08_thousand_events_in_a_second_are_two_runs_and_one_after_idling_is_one_at_once() -> None:
    """kubernetes/kubernetes#124272: a minimum between runs traded latency for CPU; it need not.

    The first of many is followed at once, the rest by one run a second later, and one that comes alone at once.
    """
    runs: list[float] = []

    def work() -> bool:
        runs.append(clock.now())
        return True

    clock = Played({})
    runner = Runner(work, Intervals(minimum=1.0), clock)
    events = {10 + number / 1000: runner.request for number in range(1000)}
    clock.happens = sorted((events | {50.0: runner.request, 100.0: runner.stop}).items())
    runner.loop()
    assert runs == [10.0, 11.0, 50.0]


def test_c08_thousand_changes_of_objects_are_few_syncs_that_miss_none(namespace: Namespace) -> None:
    """kubernetes/kubernetes#124272: with the default's intervals, at the real clock; all that was said is applied."""
    source, journal = Speaking(*WEB), Journal()
    agent = Agent(source, AgentOptions(NODE, SETTINGS, Intervals()), journal)
    with working(agent, journal, source):
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.10"), 20)
        time.sleep(1.1)
        before, began = len(journal.results), time.monotonic()
        for turn in range(1000):
            source.sink.apply([endpoints("web", [turn % 200 + 1, 201 + turn % 50])])
            time.sleep(max(0.0, began + (turn + 1) / 1000 - time.monotonic()))
        took = time.monotonic() - began
        eventually(lambda: holds(namespace, "endpoints-tcp-0", "10.244.0.200 ", kind="map"), 20)
        eventually(lambda: holds(namespace, "endpoints-tcp-0", "10.244.0.250 ", kind="map"), 20)
        syncs = [result for result in journal.results[before:] if result.family is V4]
        assert len(syncs) <= 2 + took, "one at once, then one a second"
        assert sum(result.transactions for result in syncs) <= 2 + took


class Shifted(SystemClock):
    """The machine's time, and what a test adds to it."""

    added = 0.0

    def now(self) -> float:
        return super().now() + self.added


def test_c08_change_after_idling_does_not_wait_for_the_minimum(namespace: Namespace) -> None:
    """kubernetes/kubernetes#124272: a change that comes alone is applied long before the minimum would have passed."""
    source, journal, clock = Speaking(*WEB), Journal(), Shifted()
    agent = Agent(source, AgentOptions(NODE, SETTINGS, Intervals(minimum=60.0)), journal, clock)
    with working(agent, journal, source):
        eventually(lambda: {result.family for result in journal.results} == {V4, V6}, 20)
        clock.added = 61.0
        source.sink.apply([endpoints("web", [77, 78])])
        eventually(lambda: holds(namespace, "endpoints-tcp-0", "10.244.0.77", kind="map"), 20)
        source.sink.apply([endpoints("web", [79, 80])])
        time.sleep(0.3)
        assert not holds(namespace, "endpoints-tcp-0", "10.244.0.79", kind="map"), "the next one does"
