"""The runner: at once after a quiet time, then not too often; again after a failure; at least now and then."""

import heapq
import itertools
import threading
import time
from collections.abc import Callable

import pytest

from nodeproxy.sync.runner import Intervals, Runner, SystemClock

INTERVALS = Intervals(minimum=1.0, retry=30.0, maximum=3600.0)
START = 1000.0


class Script:
    """A clock, and what happens when. Time passes only while the runner waits, or a run takes its time."""

    def __init__(self, intervals: Intervals = INTERVALS) -> None:
        self.time = START
        self.runs: list[float] = []
        self.tidied: list[float] = []
        self.duration = 0.0
        self.outcomes: list[bool] = []
        self.tidy_due: float | None = None
        self.run_due: float | None = None
        self.urgent_due: float | None = None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._waits = 0
        self.runner = Runner(
            self._run,
            intervals,
            self,
            self._tidy,
            lambda: self.tidy_due,
            lambda: self.run_due,
            lambda: self.urgent_due,
        )

    def at(self, after: float, action: Callable[[], None]) -> None:
        """Do something ``after`` seconds from the start."""
        heapq.heappush(self._events, (START + after, next(self._numbers), action))

    def request_at(self, *moments: float) -> None:
        for after in moments:
            self.at(after, self.runner.request)

    def play(self, seconds: float) -> list[float]:
        """Run the loop for this long; the starts of all runs, in seconds from the start."""
        self.at(seconds, self.runner.stop)
        self.runner.loop()
        return [round(moment - START, 6) for moment in self.runs]

    def now(self) -> float:
        return self.time

    def wait(self, event: threading.Event, timeout: float) -> None:
        self._waits += 1
        assert self._waits < 20_000, "the loop spins"
        assert timeout > 0
        self._pass(self.time + timeout, event)

    def _pass(self, until: float, event: threading.Event | None = None) -> None:
        while self._events and self._events[0][0] <= until and not (event and event.is_set()):
            moment, _, action = heapq.heappop(self._events)
            self.time = max(self.time, moment)
            action()
        if not (event and event.is_set()):
            self.time = until

    def urge_at(self, after: float, due: float) -> None:
        """Have it known ``after`` seconds from the start that a run has to be ``due`` seconds from the start."""

        def urge() -> None:
            self.urgent_due = START + due
            self.runner.wake()

        self.at(after, urge)

    def _run(self) -> bool:
        self.runs.append(self.time)
        if self.urgent_due is not None and self.urgent_due <= self.time:
            self.urgent_due = None
        if self.duration:
            self._pass(self.time + self.duration)
        return self.outcomes.pop(0) if self.outcomes else True

    def _tidy(self) -> None:
        self.tidied.append(self.time - START)
        self.tidy_due = None


@pytest.fixture
def script() -> Script:
    return Script()


def test_nothing_runs_before_the_first_request(script: Script) -> None:
    assert script.play(100_000) == []


def test_first_request_runs_at_once(script: Script) -> None:
    script.request_at(5)
    assert script.play(100) == [5]


def test_request_after_idling_runs_at_once(script: Script) -> None:
    script.request_at(5, 50, 51.5)
    assert script.play(100) == [5, 50, 51.5]


def test_next_run_starts_no_sooner_than_the_minimum_after_the_end_of_the_last(script: Script) -> None:
    """The last run took from 0 to 4, so the next one starts at 5, whether asked for during it or just after."""
    script.duration = 4
    script.request_at(0, 2)
    assert script.play(8) == [0, 5]
    other = Script()
    other.duration = 4
    other.request_at(0, 4.5)
    assert other.play(8) == [0, 5]


def test_minimum_of_zero_runs_every_request_at_once() -> None:
    script = Script(Intervals(minimum=0.0))
    script.request_at(0, 0.1, 0.2)
    assert script.play(10) == [0, 0.1, 0.2]


def test_requests_that_come_meanwhile_become_one_run(script: Script) -> None:
    script.request_at(0, 0.2, 0.4, 0.6)
    assert script.play(100) == [0, 1]


def test_thousand_requests_in_a_second_cause_two_runs(script: Script) -> None:
    script.request_at(*(i / 1000 for i in range(1000)))
    assert script.play(100) == [0, 1]


def test_steady_requests_run_once_per_minimum(script: Script) -> None:
    script.request_at(*(i / 10 for i in range(100)))
    assert script.play(60) == list(range(11))


def test_request_during_a_run_is_not_lost(script: Script) -> None:
    """Even one that comes with the run's last breath."""
    script.duration = 4
    script.request_at(0, 4)
    assert script.play(20) == [0, 5]


def test_request_from_within_a_run_is_not_lost() -> None:
    starts: list[float] = []

    def run() -> bool:
        starts.append(script.time - START)
        if len(starts) == 1:
            runner.request()
        return True

    script = Script()
    runner = Runner(run, INTERVALS, script)
    script.at(0, runner.request)
    script.at(50, runner.stop)
    runner.loop()
    assert starts == [0, 1]


def test_failed_run_is_tried_again_after_the_retry_time(script: Script) -> None:
    script.outcomes = [False, False, True]
    script.request_at(0)
    assert script.play(1000) == [0, 30, 60]


def test_retry_time_counts_from_the_end_of_the_failed_run(script: Script) -> None:
    script.outcomes, script.duration = [False], 4
    script.request_at(0)
    assert script.play(100) == [0, 34]


def test_request_after_a_failure_does_not_wait_for_the_retry(script: Script) -> None:
    """And when that run succeeds, the retry is off."""
    script.outcomes = [False, True]
    script.request_at(0, 10)
    assert script.play(1000) == [0, 10]


def test_retry_is_never_sooner_than_the_minimum() -> None:
    script = Script(Intervals(minimum=10.0, retry=1.0))
    script.outcomes = [False]
    script.request_at(0)
    assert script.play(100) == [0, 10]


def test_runs_at_least_every_maximum(script: Script) -> None:
    script.duration = 10
    script.request_at(0)
    assert script.play(8000) == [0, 3610, 7220]


def test_maximum_counts_from_the_last_run_whoever_asked_for_it(script: Script) -> None:
    script.request_at(0, 3000)
    assert script.play(6700) == [0, 3000, 6600]


def test_failure_is_tried_again_within_the_maximum_however_long_the_retry_time_is() -> None:
    script = Script(Intervals(minimum=1.0, retry=10_000.0, maximum=3600.0))
    script.outcomes = [False]
    script.request_at(0)
    assert script.play(5000) == [0, 3600]


def test_maximum_never_undercuts_the_minimum() -> None:
    script = Script(Intervals(minimum=7200.0, retry=7200.0, maximum=3600.0))
    script.request_at(0)
    assert script.play(10_000) == [0, 7200]


def test_run_that_is_due_comes_then_though_others_came_meanwhile(script: Script) -> None:
    """The maximum alone would put it off with each of them."""
    script.run_due = START + 3600
    script.request_at(0, 1000, 3500, 7000)
    script.at(3600.5, lambda: setattr(script, "run_due", START + 7200))
    assert script.play(7200.5) == [0, 1000, 3500, 3600, 7000, 7200]


def test_run_that_is_due_is_never_sooner_than_the_minimum_after_the_last(script: Script) -> None:
    script.run_due = START + 5.5
    script.request_at(0, 5)
    script.at(6.5, lambda: setattr(script, "run_due", None))
    assert script.play(100) == [0, 5, 6]


def test_run_that_is_due_later_does_not_put_off_the_maximum(script: Script) -> None:
    script.run_due = START + 10_000
    script.request_at(0)
    assert script.play(4000) == [0, 3600]


def test_nothing_is_due_before_the_first_request(script: Script) -> None:
    script.run_due = START + 5
    assert script.play(100) == []


def test_failed_run_is_tried_again_after_the_retry_time_though_one_is_overdue(script: Script) -> None:
    """A full sync that fails stays due; it must not be repeated every second."""
    script.run_due = START
    script.outcomes = [False, False, True]
    script.request_at(0)
    script.at(60.5, lambda: setattr(script, "run_due", None))
    assert script.play(100) == [0, 30, 60]


def test_tidying_is_done_when_due_and_is_no_run(script: Script) -> None:
    """The run that follows it keeps its distance from the last run, not from the tidying."""
    script.request_at(0, 0.9)
    script.tidy_due = START + 0.5
    assert script.play(100) == [0, 1]
    assert script.tidied == [0.5]


def test_tidying_does_not_put_off_the_hourly_run(script: Script) -> None:
    script.request_at(0)
    script.tidy_due = START + 3000
    assert script.play(5000) == [0, 3600]
    assert script.tidied == [3000]


def test_tidying_needs_no_request_and_waits_for_its_time(script: Script) -> None:
    script.tidy_due = START + 7000
    assert script.play(8000) == []
    assert script.tidied == [7000]


def test_a_run_goes_before_tidying(script: Script) -> None:
    order: list[str] = []
    script.tidy_due = START + 5

    def run() -> bool:
        order.append("run")
        return True

    def tidy() -> None:
        order.append("tidy")
        script.tidy_due = None

    runner = Runner(run, INTERVALS, script, tidy, lambda: script.tidy_due)
    script.at(5, runner.request)
    script.at(20, runner.stop)
    runner.loop()
    assert order == ["run", "tidy"]


def test_stopped_before_the_loop_runs_nothing(script: Script) -> None:
    script.runner.request()
    script.runner.stop()
    script.runner.loop()
    assert script.runs == []


def test_stop_during_a_run_ends_the_loop_after_it(script: Script) -> None:
    script.duration = 4
    script.request_at(0, 1)
    assert script.play(2) == [0]


def test_stop_from_another_thread_ends_a_waiting_loop() -> None:
    runner = Runner(lambda: True, INTERVALS, SystemClock())
    thread = threading.Thread(target=runner.loop)
    thread.start()
    runner.request()
    runner.stop()
    thread.join(5)
    assert not thread.is_alive()


def test_no_request_of_other_threads_is_lost() -> None:
    """Each thread notes something, then asks for a run: some run begins after the last note."""
    notes: list[int] = []
    seen = 0

    def run() -> bool:
        nonlocal seen
        seen = len(notes)
        return True

    runner = Runner(run, Intervals(minimum=0.0), SystemClock())

    def produce() -> None:
        for number in range(2000):
            notes.append(number)
            runner.request()

    loop = threading.Thread(target=runner.loop)
    loop.start()
    try:
        producers = [threading.Thread(target=produce) for _ in range(3)]
        for producer in producers:
            producer.start()
        for producer in producers:
            producer.join(20)
        deadline = time.monotonic() + 5
        while seen < len(notes) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert seen == len(notes) == 6000
    finally:
        runner.stop()
        loop.join(5)
    assert not loop.is_alive()


def test_an_urgent_run_does_not_wait_for_the_minimum() -> None:
    script = Script(Intervals(minimum=20.0))
    script.request_at(1)
    script.urge_at(3, 3)
    assert script.play(15) == [1, 3]


def test_an_urgent_run_may_be_due_later(script: Script) -> None:
    script.request_at(1)
    script.urge_at(3, 7)
    assert script.play(15) == [1, 7]


def test_the_minimum_counts_from_an_urgent_run_as_well() -> None:
    script = Script(Intervals(minimum=10.0))
    script.request_at(1, 4)
    script.urge_at(3, 3)
    assert script.play(30) == [1, 3, 13]


def test_an_urgent_run_takes_along_what_was_asked_for() -> None:
    script = Script(Intervals(minimum=10.0))
    script.request_at(1, 4)
    script.urge_at(5, 5)
    assert script.play(30) == [1, 5]


def test_nothing_is_urgent_before_the_first_run(script: Script) -> None:
    script.urge_at(3, 3)
    script.request_at(9)
    assert script.play(15) == [9]


def test_being_woken_alone_runs_nothing(script: Script) -> None:
    script.request_at(1)
    for moment in (2, 3, 4):
        script.at(moment, script.runner.wake)
    assert script.play(15) == [1]
