"""When the API server is asked again, after which failure, and for what."""

import random
import time
from dataclasses import replace

import pytest

from apiserver import NoStreamingLists, Refuse
from nodeproxy.kube.api import Timings
from nodeproxy.kube.backoff import Backoff, BriefWatchError
from nodeproxy.kube.demands import Demands
from nodeproxy.kube.objects import KINDS
from nodeproxy.kube.resources import resources
from nodeproxy.kube.streams import StreamError
from nodeproxy.kube.transport import SilenceError, StatusError, UnreachableError

from .api_support import FAST, NODE, following, serving
from .support import service

EXPIRED = StatusError(410, "Expired", "too old")
BUSY = StatusError(429, "TooManyRequests", "later", 3.0)
BROKEN = StatusError(500, "InternalError", "no")
AWAY = UnreachableError("refused")
SLUGGISH = replace(FAST, first_backoff=8.0, most_backoff=60.0, most_unanswered=60.0)
"""After a few failures pauses are a minute: what recovers sooner does not wait for their end."""


class Longest(random.Random):
    """Always the upper bound."""

    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


@pytest.fixture
def backoff():
    return Backoff(Timings(), Longest())


def test_pauses_double_up_to_a_bound_and_begin_anew_once_things_go_well(backoff):
    assert [backoff.failed(BROKEN) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert backoff.failures == 7
    backoff.settled()
    assert backoff.failed(BROKEN) == 1


def test_an_absent_server_is_asked_more_often_than_a_failing_one(backoff):
    assert [backoff.failed(AWAY) for _ in range(6)] == [1, 2, 4, 8, 10, 10]


def test_pauses_are_anything_up_to_the_bound():
    pauses = [Backoff(Timings(), random.Random(seed)).failed(BROKEN) for seed in range(200)]  # noqa: S311 -- no secrets
    assert min(pauses) < 0.1
    assert max(pauses) > 0.9


def test_what_the_server_asks_for_is_added_and_bounded(backoff):
    assert backoff.failed(BUSY) == 1 + 3
    assert backoff.failed(StatusError(503, "", "", 3600.0)) == 2 + 120


def test_silence_was_pause_enough_but_not_twice(backoff):
    assert [backoff.failed(SilenceError("silent")) for _ in range(2)] == [0, 2]


def test_a_version_that_expired_during_an_outage_is_the_first_failure_and_not_one_more(backoff):
    for _ in range(10):
        backoff.failed(AWAY)
    assert [backoff.failed(EXPIRED) for _ in range(4)] == [1, 2, 4, 8]
    backoff.failed(AWAY)
    assert backoff.failed(EXPIRED) == 30
    backoff.settled()
    assert backoff.failed(EXPIRED) == 1


@pytest.mark.parametrize(
    ("error", "times"),
    [
        (EXPIRED, 1),
        (StreamError("odd"), 1),
        (ValueError("a fault of ours"), 1),
        (BROKEN, 3),
        (SilenceError("silent"), 3),
        (AWAY, None),
        (BriefWatchError("brief"), None),
        (BUSY, None),
    ],
)
def test_a_version_is_given_up_where_going_on_from_it_can_not_work(backoff, error, times):
    verdicts = [backoff.must_list(error) for _ in range(times or 20)]
    assert verdicts == [False] * (len(verdicts) - 1) + [times is not None]


def test_less_is_asked_for_where_the_server_does_not_understand():
    services = resources(NODE)[0]
    demands = Demands(services)
    assert demands.streamed_list(300)["sendInitialEvents"] == "true"
    assert demands.concede(StatusError(422, "Invalid", "sendInitialEvents: Forbidden"), listing=True)
    assert not demands.streams_lists
    assert demands.page("", limit=True) == {**services.selectors, **services.wishes, "limit": "500"}
    assert demands.concede(StatusError(400, "BadRequest", "field label not supported: spec.clusterIP"), listing=True)
    assert demands.page("next", limit=True) == {**services.selectors, "limit": "500", "continue": "next"}
    assert demands.page("", limit=False) == dict(services.selectors)
    assert demands.watch("7", 300.4) == {
        **services.selectors,
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "300",
        "resourceVersion": "7",
    }
    assert not demands.concede(StatusError(400, "BadRequest", "still not"), listing=True)
    assert not Demands(services).concede(BROKEN, listing=True)


@pytest.fixture(params=["streamed", "paged"])
def server(request):
    with serving() as server:
        if request.param == "paged":
            server.faults.append(NoStreamingLists())
        yield server


def test_after_an_outage_an_expired_version_is_listed_anew_at_once(server, tmp_path):
    timings = replace(FAST, first_backoff=0.1, most_backoff=60.0, most_unanswered=0.2)
    with following(server, tmp_path, timings) as proxy:
        proxy.sink.wait_for_start()
        server.wait_for_watches()
        server.refuse()

        def has_failed_often() -> bool:
            return all(
                sum(line["resource"] == resource.path for line in proxy.logged("following interrupted")) >= 10
                for resource in resources(NODE)
            )

        server.wait(has_failed_often, "not tried again")
        server.delete("Service", "web", "shop")
        server.compact()
        server.accept()
        begun = time.monotonic()
        proxy.wait_until_equal()
        proxy.wait_until_healthy()
        since = [line for line in proxy.logged("following interrupted") if line["kind"] == "StatusError"]
        assert since
        assert all(line["retry_seconds"] <= 0.2 for line in since)
        assert time.monotonic() - begun < 60


def test_the_first_that_is_answered_again_wakes_the_others(tmp_path):
    """Pauses are random, and the shortest of four is short."""
    with serving() as server, following(server, tmp_path, SLUGGISH) as proxy:
        proxy.sink.wait_for_start()
        server.wait_for_watches()
        server.refuse()
        for kind in KINDS:
            proxy.wait_until_unhealthy(kind)
        server.accept()
        proxy.wait_until_healthy(60)
        failures = proxy.logged("following interrupted")
        pauses = sorted(line["retry_seconds"] for line in failures[-len(KINDS) :])
        turned = sorted(health.since for health in proxy.source.health())
        assert turned[-1] - turned[0] < (pauses[-1] - pauses[0]) / 2


def test_a_server_that_asked_for_time_is_not_asked_sooner_since_another_kind_is_answered(tmp_path):
    with serving() as server:
        busy = Refuse(429, kind="EndpointSlice", times=1)
        server.faults.append(busy)
        with following(server, tmp_path, replace(FAST, first_backoff=3.0, most_backoff=3.0)) as proxy:
            server.wait(lambda: busy.hits, "not asked")
            server.wait(lambda: proxy.logged("following interrupted"), "no failure")
            proxy.source._wake()
            proxy.sink.wait_for_start()
            first, second, *_ = server.asked("EndpointSlice")
            pause = proxy.logged("following interrupted")[0]["retry_seconds"]
            assert second.time - first.time >= pause - 0.1


def test_a_sink_that_fails_once_gets_everything_again(server, tmp_path):
    """Also what came before it failed, and the word that a list is complete."""
    with following(server, tmp_path) as proxy:
        failing = {"apply": 1, "complete": 1}

        def fail_once(name):
            original = getattr(proxy.sink, name)

            def once(*args):
                if failing[name]:
                    failing[name] -= 1
                    raise _SinkError
                original(*args)

            setattr(proxy.sink, name, once)

        fail_once("apply")
        fail_once("complete")
        server.put(service("a"))
        server.wait(lambda: failing["apply"] == 0, "nothing was applied")
        proxy.wait_until_equal()
        proxy.wait_until_healthy()
        proxy.log.clear()  # one error line for each


class _SinkError(Exception):
    """What a sink may raise."""
