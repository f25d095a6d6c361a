"""Whatever the API server answers, and however answers break off: in the end the sink has what the server has."""

import logging
import time
from collections.abc import Callable

import pytest

from apiserver import (
    Alter,
    ApiServer,
    Before,
    Cut,
    HostileProxy,
    NoStreamingLists,
    Refuse,
    Reset,
    RetryAfter,
    Silence,
    Slow,
    Store,
    TruncatedChunk,
)
from apiserver.answers import Exchange, Settings
from apiserver.faults import Fault
from nodeproxy.kube.api import Timings
from nodeproxy.kube.objects import KINDS
from nodeproxy.kube.resources import resources
from nodeproxy.kube.source import ObjectKey
from nodeproxy.kube.transport import Transport

from .api_support import BOOKMARK_SECONDS, FAST, NODE, basics, following, many_services, serving
from .support import WEB, endpoint_slice, service

GONE = ObjectKey("Service", "shop", "s3")
HITS = 8  # two for each kind, about
FAULTS: dict[str, Callable[[], Fault]] = {
    "410": lambda: Refuse(410, times=HITS),
    "500": lambda: Refuse(500, times=HITS),
    "503": lambda: Refuse(503, times=HITS),
    "504": lambda: Refuse(504, times=HITS),
    "error without a Status": lambda: Alter(function=lambda _: b"<html>Bad Gateway</html>\n", times=HITS),
    "429 with Retry-After": lambda: RetryAfter(429, 1, times=HITS),
    "cut before anything": lambda: Cut(times=HITS),
    "cut within a line": lambda: Cut(after_bytes=150, times=HITS),
    "reset before anything": lambda: Reset(times=HITS),
    "reset within a line": lambda: Reset(after_bytes=150, times=HITS),
    "chunk cut short": lambda: TruncatedChunk(after_bytes=150, times=HITS),
    "silence before anything": lambda: Silence(times=HITS),
    "silence within a line": lambda: Silence(after_bytes=150, times=HITS),
    "trickle": lambda: Slow(bytes_per_second=4_000, times=HITS),
}
MOST_REQUESTS = 80
"""Of all four kinds, for eight faults: lists, pages, watches, and a few more for good measure. A loop has thousands."""


@pytest.fixture(params=["streamed", "paged"])
def server(request):
    """API servers that stream lists (KEP-3157), and that do not."""
    with serving() as server:
        server.put(*many_services(20))
        if request.param == "paged":
            server.faults.append(NoStreamingLists())
        yield server


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_at_the_start_delay_it(server, tmp_path, fault):
    server.faults.insert(0, FAULTS[fault]())
    with following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        proxy.wait_until_equal()
        proxy.wait_until_healthy()
    assert server.faults[0].hits
    assert len(server.requests) <= MOST_REQUESTS


@pytest.mark.parametrize("fault", FAULTS)
def test_changes_during_faults_of_watches_are_not_lost(server, tmp_path, fault):
    with following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        server.wait_for_watches()
        begun = time.monotonic()
        server.faults.insert(0, FAULTS[fault]())
        server.tell(Exchange.end)
        _change(server)
        proxy.wait_until_equal()
        assert GONE not in proxy.sink.objects
        server.wait(lambda: server.faults[0].hits, "no fault happened")
        server.faults.pop(0)
        proxy.wait_until_healthy()
        server.put(service("after"))
        proxy.wait_until_equal()
        assert len(server.asked(since=begun)) <= MOST_REQUESTS


@pytest.mark.parametrize("ending", ["end", "cut", "reset"])
def test_watches_that_end_go_on_where_they_were(server, tmp_path, ending):
    with following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        server.wait_for_watches()
        begun = time.monotonic()
        server.tell(getattr(Exchange, ending))
        _change(server)
        proxy.wait_until_equal()
        server.wait_for_watches(since=begun)
        assert not [request for request in server.asked(since=begun) if not request.query.get("resourceVersion")]


@pytest.mark.parametrize("form", ["status", "event"])
def test_a_version_that_has_expired_while_the_server_was_away_means_one_list(server, tmp_path, form):
    """https://github.com/kubernetes-client/python-base/issues/57; so does a restart with a compaction of etcd."""
    server.settings.expired_as_status = form == "status"
    with following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        server.wait_for_watches()
        server.refuse()
        _change(server)
        server.compact()
        batches, begun = len(proxy.sink.batches), time.monotonic()
        server.accept()
        proxy.wait_until_equal()
        proxy.wait_until_healthy()
        assert GONE not in proxy.sink.objects
        changed = {change.key for batch in proxy.sink.batches[batches:] for change in batch}
        assert changed == {GONE, WEB, ObjectKey("Service", "shop", "new"), ObjectKey("EndpointSlice", "shop", "web-1")}
        for kind in KINDS:
            assert proxy.health(kind).lists <= 2
            assert len(server.asked(kind, since=begun)) <= 6


def test_a_version_that_expires_within_a_stream_means_a_list(server, tmp_path):
    with following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        server.wait_for_watches()
        server.settings.muted = True
        time.sleep(0.2)  # The last look of those that were not muted yet.
        _change(server)
        server.compact()
        server.settings.expired_as_status = True
        server.tell(Exchange.expire)
        server.settings.muted = False
        proxy.wait_until_equal()
        proxy.wait_until_healthy()
        assert GONE not in proxy.sink.objects


def test_versions_that_expire_again_and_again_are_listed_ever_more_seldom(tmp_path):
    """https://github.com/apache/airflow/pull/23521: on 410 it began again with the same version, and looped."""
    with serving() as server:
        server.faults += [NoStreamingLists(), Refuse(410, kind="Service", verb="watch", times=3)]
        with following(server, tmp_path) as proxy:
            proxy.sink.wait_for_start()
            proxy.wait_until_healthy()
            server.put(service("after"))
            proxy.wait_until_equal()
            assert len(server.asked("Service", "list")) <= 4
            _pauses_grow(proxy, "/api/v1/services", steps=3)


def test_versions_that_are_expired_for_ever_do_not_make_a_busy_loop(server, tmp_path):
    with following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        server.wait_for_watches()
        server.faults.insert(0, Refuse(410, kind="Service", verb="watch"))
        begun = time.monotonic()
        server.tell(Exchange.end, "Service")
        time.sleep(4)
        seconds = time.monotonic() - begun
        asked = server.asked("Service", since=begun)
        assert len(asked) <= 20 + 30 * seconds
        assert len(proxy.logged("following interrupted")) <= len(asked) + 1
        _pauses_grow(proxy, "/api/v1/services", steps=4)
        server.faults.pop(0)
        _change(server)
        proxy.wait_until_equal()


def test_an_unreachable_server_is_waited_for_quietly_and_what_is_known_stays(server, tmp_path, caplog):
    """https://github.com/kubernetes-client/python/issues/869: retries within the library, and no end of warnings."""
    with caplog.at_level(logging.WARNING), following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        server.wait_for_watches()
        batches, objects = len(proxy.sink.batches), dict(proxy.sink.objects)
        server.refuse()
        _change(server)
        begun, worked = time.monotonic(), time.process_time()
        for kind in KINDS:
            proxy.wait_until_unhealthy(kind)
        time.sleep(3)
        seconds, worked = time.monotonic() - begun, time.process_time() - worked
        assert worked < seconds / 2
        assert len(proxy.logged("following interrupted")) <= len(KINDS) * (8 + 10 * seconds)
        assert (len(proxy.sink.batches), proxy.sink.objects) == (batches, objects)
        server.accept()
        proxy.wait_until_equal()
        proxy.wait_until_healthy()
        assert len(proxy.logged("followed again")) == len(KINDS)
    assert not [record for record in caplog.records if record.name.startswith("urllib3")]


def test_a_server_that_is_not_there_yet_is_waited_for(tmp_path):
    with serving() as server:
        server.refuse()
        with following(server, tmp_path) as proxy:
            server.wait(lambda: len(proxy.logged("following interrupted")) >= 2 * len(KINDS), "not tried again")
            assert not proxy.sink.log
            assert not any(health.healthy for health in proxy.source.health())
            server.accept()
            proxy.sink.wait_for_start()
            proxy.wait_until_equal()


def test_a_delete_between_list_and_watch_is_seen(server, tmp_path):
    """https://github.com/jupyterhub/kubespawner/pull/81: the watch began with whatever was there by then."""

    def happens() -> None:
        server.delete("Service", "s3", "shop")
        server.put(service("web", ports=[{"port": 85}]))

    gap = Before(call=happens, kind="Service")
    server.faults.append(gap)
    with following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        proxy.wait_until_equal()
        assert gap.hits == 1
        assert GONE not in proxy.sink.objects
        proxy.sink.wait_for_port(85)


def test_the_first_watch_that_ends_at_once_goes_on_from_the_lists_version(tmp_path):
    """https://github.com/kubernetes-client/python-base/pull/109: it went on from the last item's, which is older."""
    with serving() as server:
        server.faults.append(NoStreamingLists())
        server.put(service("old"))
        version = server.put(service("newer"))
        server.delete("Service", "newer", "shop")
        with following(server, tmp_path) as proxy:
            proxy.sink.wait_for_start()
            server.wait_for_watches()
            listed = server.store.revision
            assert listed > version
            begun = time.monotonic()
            server.tell(Exchange.end)
            server.wait_for_watches(since=begun)
            assert {request.query["resourceVersion"] for request in server.asked(since=begun)} == {str(listed)}
            assert ObjectKey("Service", "shop", "newer") not in proxy.sink.objects


def test_a_server_that_asks_for_time_gets_it(tmp_path):
    with serving() as server:
        busy = RetryAfter(429, 2, kind="EndpointSlice", times=1)
        server.faults.append(busy)
        with following(server, tmp_path) as proxy:
            proxy.sink.wait_for_start()
            first, second, *_ = server.asked("EndpointSlice")
            assert first.status == 429
            assert second.time - first.time >= 1.9


def test_a_server_that_asks_for_too_much_time_is_asked_sooner(tmp_path):
    timings = Timings(most_wait=0.5, first_backoff=0.05)
    with serving() as server:
        server.faults.append(RetryAfter(503, 3600, times=4))
        with following(server, tmp_path, timings) as proxy:
            proxy.sink.wait_for_start()
            proxy.wait_until_equal()


def test_a_server_that_lags_is_not_believed(tmp_path):
    """https://github.com/elastic/cloud-on-k8s/issues/4956: a list of "any version" told of an older world."""
    with serving() as server:
        server.put(*many_services(20))
        server.lag()
        _change(server)
        with following(server, tmp_path) as proxy:
            proxy.sink.wait_for_start()
            proxy.wait_until_equal()
            assert GONE not in proxy.sink.objects


@pytest.mark.parametrize("streamed", [True, False])
def test_an_empty_first_list_is_confirmed_before_it_counts(tmp_path, streamed):
    """Rules that are there would be removed on its word; every cluster has the API server's own Service."""
    with serving() as server:
        if not streamed:
            server.faults.append(NoStreamingLists())
        wrong = [Alter(function=_emptied, kind=kind, times=1, when=_lists) for kind in ("Service", "EndpointSlice")]
        server.faults += wrong
        with following(server, tmp_path) as proxy:
            proxy.sink.wait_for_start()
            assert all(fault.hits == 1 for fault in wrong)
            assert any(key.kind == "Service" for key in proxy.sink.objects)
            assert any(key.kind == "EndpointSlice" for key in proxy.sink.objects)
            proxy.wait_until_equal()


@pytest.mark.parametrize("streamed", [True, False])
def test_a_list_that_lacks_most_of_what_is_known_is_confirmed_before_it_counts(tmp_path, streamed):
    with serving() as server:
        if not streamed:
            server.faults.append(NoStreamingLists())
        server.put(*many_services(100))
        with following(server, tmp_path) as proxy:
            proxy.sink.wait_for_start()
            proxy.wait_until_equal()
            server.wait_for_watches()
            wrong = Alter(function=_emptied, kind="Service", times=1, when=_lists)
            server.faults.append(wrong)
            batches = len(proxy.sink.batches)
            server.tell(Exchange.expire, "Service")
            server.wait(lambda: proxy.health("Service").lists == 2, "no second list")
            server.put(service("after"))
            proxy.wait_until_equal()
            assert wrong.hits == 1
            assert not [change for batch in proxy.sink.batches[batches:] for change in batch if change.object is None]


def test_a_list_that_truly_lacks_most_counts_at_once(server, tmp_path):
    with following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        proxy.wait_until_equal()
        server.wait_for_watches()
        server.refuse()
        server.store.delete_all("Service")
        server.store.delete_all("EndpointSlice")
        server.compact()
        begun = time.monotonic()
        server.accept()
        proxy.wait_until_equal()
        assert not [key for key in proxy.sink.objects if key.kind in {"Service", "EndpointSlice"}]
        assert len(server.asked(since=begun)) <= MOST_REQUESTS / 2


def test_a_cluster_restored_from_a_backup_is_followed_though_its_versions_are_older(tmp_path):
    """A watch from a version to come says nothing until then, so nothing would be seen for a long time.

    See https://kubernetes.io/docs/tasks/administer-cluster/configure-upgrade-etcd/#restoring-an-etcd-cluster.
    """
    with serving() as before, ApiServer(settings=Settings(bookmark_seconds=BOOKMARK_SECONDS), store=Store()) as after:
        before.put(*(service("web", ports=[{"port": port}]) for port in range(1000, 1500)))
        after.put(*basics(), service("restored"))
        with HostileProxy(("127.0.0.1", before.port)) as way, following(after, tmp_path, port=way.port) as proxy:
            proxy.sink.wait_for_start()
            before.wait_for_watches()
            way.target = ("127.0.0.1", after.port)
            way.cut()
            proxy.wait_until_equal(40)
            after.put(service("later"))
            proxy.wait_until_equal()


def test_watches_and_other_requests_have_connections_enough(tmp_path, caplog):
    """https://github.com/kubernetes-client/python/issues/402: a full pool, and then no more events."""
    with caplog.at_level(logging.WARNING), serving() as server, following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        server.wait_for_watches()
        transport = Transport(proxy.source._access, FAST.connect)
        for _ in range(20):
            with transport.get("/api/v1/nodes", {"limit": "1"}, 5) as first:
                with transport.get("/api/v1/services", {"limit": "1"}, 5) as second:
                    assert list(second.chunks())
                assert list(first.chunks())
        server.put(service("after"))
        proxy.wait_until_equal()
        assert len({watch.request.connection for watch in server.watches}) == len(KINDS)
        assert server.connections <= len(KINDS) + 4
    assert not [record for record in caplog.records if record.name.startswith("urllib3")]


def test_nothing_is_read_but_the_four_resources(server, tmp_path):
    """https://github.com/nolar/kopf/issues/734: another program's objects paused everything."""
    with following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        server.wait_for_watches()
        _change(server)
        proxy.wait_until_equal()
    assert {request.path for request in server.requests} == {resource.path for resource in resources(NODE)}
    assert {request.method for request in server.requests} == {"GET"}


def _change(server: ApiServer) -> None:
    """Something is deleted, something made, something changed."""
    server.delete("Service", "s3", "shop")
    server.put(service("new"), service("web", ports=[{"port": 99}]), endpoint_slice("web-1", endpoints=None))


def _lists(request) -> bool:
    return request.is_streaming_list or not request.is_watch


def _emptied(data: bytes) -> bytes:
    """A list, or the initial events of one, without objects."""
    if data.startswith(b'{"kind"'):
        return data[: data.index(b'"items":[')] + b'"items":[]}'
    return b"".join(line for line in data.splitlines(keepends=True) if b'"BOOKMARK"' in line)


def _pauses_grow(proxy, path: str, steps: int) -> None:
    """Each pause is bounded by twice as much as the one before, and none of them counts from the beginning again."""
    lines = [
        line
        for line in proxy.logged("following interrupted")
        if line["resource"] == path and line["kind"] == "StatusError"
    ]
    assert [line["failures"] for line in lines[:steps]] == list(range(1, steps + 1))
    for index, line in enumerate(lines):
        assert line["retry_seconds"] <= min(FAST.most_backoff, FAST.first_backoff * 2**index) + 0.01
