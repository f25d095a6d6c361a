"""What the API server has, the sink has: lists, watches, selectors, and what goes without saying."""

import time

import pytest

from apiserver import Before, NoFieldSelector, NoStreamingLists, Refuse, SmallChunks
from nodeproxy.kube.api import Timings
from nodeproxy.kube.objects import KINDS
from nodeproxy.kube.source import ObjectKey, SourceError

from .api_support import BOOKMARK_SECONDS, NODE, following, many_services, meta, node, service_cidr, serving
from .support import WEB, endpoint_slice, service

HEADLESS = {"service.kubernetes.io/headless": ""}


@pytest.fixture(params=["streamed lists", "paged lists", "old server"])
def server(request):
    """API servers that stream lists (KEP-3157), that do not, and that know no field selectors but metadata's either."""
    with serving() as server:
        if request.param != "streamed lists":
            server.faults.append(NoStreamingLists(unknown=request.param == "old server"))
        if request.param == "old server":
            server.faults.append(NoFieldSelector())
        yield server


def test_what_is_there_at_the_start_comes_before_the_word_that_it_is_complete(server, tmp_path):
    server.put(*many_services(1200))
    with following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        before = proxy.sink.log.index("complete Service")
        assert sum(len(batch) for batch in proxy.sink.batches[:before]) >= 1202
        proxy.wait_until_equal()
        proxy.wait_until_healthy()
        assert {health.name for health in proxy.source.health()} == set(KINDS)


def test_changes_of_every_kind_come_one_by_one(server, tmp_path):
    with following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        server.put(service("web", ports=[{"port": 81}]))
        proxy.wait_until_equal()
        server.put(service("new"), endpoint_slice("new-1", metadata=meta("new-1", "shop", "new")))
        proxy.wait_until_equal()
        server.put(node(NODE, "10.244.9.0/24"), node("node-b", "10.244.8.0/24"))
        server.put(service_cidr("10.96.0.0/16", "10.98.0.0/16"))
        proxy.wait_until_equal()
        server.delete("Service", "web", "shop")
        server.delete("EndpointSlice", "web-1", "shop")
        server.delete("ServiceCIDR", "kubernetes")
        server.delete("Node", NODE)
        proxy.wait_until_equal()
        assert WEB not in proxy.sink.objects


def test_what_is_none_of_our_business_is_not_asked_for(tmp_path):
    with serving() as server:
        server.put(
            service("other", clusterIP="10.96.0.77"),
            {**service("mesh"), "metadata": _labelled("mesh", "service.kubernetes.io/service-proxy-name", "mesh")},
            service("headless", clusterIP="None"),
            endpoint_slice(
                "headless-1", metadata=meta("headless-1", "shop", "x", **{"service.kubernetes.io/headless": ""})
            ),
        )
        with following(server, tmp_path) as proxy:
            proxy.sink.wait_for_start()
            proxy.wait_until_equal()
            names = {key.name for key in proxy.sink.objects}
            assert {"mesh", "headless", "headless-1", "node-b"}.isdisjoint(names)
            assert "other" in names


def test_services_that_come_to_belong_to_another_proxy_are_gone_and_come_back(server, tmp_path):
    other = {**service("web"), "metadata": _labelled("web", "service.kubernetes.io/service-proxy-name", "mesh")}
    with following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        server.put(other)
        proxy.wait_until_equal()
        assert WEB not in proxy.sink.objects
        server.put(service("web"))
        proxy.wait_until_equal()
        assert WEB in proxy.sink.objects


def test_an_object_that_is_deleted_and_made_again_at_once_is_the_new_one(server, tmp_path):
    with following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        with server.store.held():
            server.delete("Service", "web", "shop")
            server.put(service("web", clusterIP="10.96.0.99"))
        proxy.wait_until_equal()


def test_an_object_with_a_mark_of_deletion_is_there_until_it_is_gone(tmp_path):
    """https://github.com/apache/airflow/pull/41436: what carried the mark was left aside, with its last state."""
    marked = service("web", ports=[{"port": 82}])
    marked["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/wait"]}
    with serving() as server, following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        server.put(marked)
        proxy.wait_until_equal()
        proxy.sink.wait_for_port(82)
        server.delete("Service", "web", "shop")
        proxy.wait_until_equal()
        assert WEB not in proxy.sink.objects


def test_lists_are_asked_for_in_their_newest_state_and_watches_go_on_from_the_lists_version(server, tmp_path):
    """https://github.com/jupyterhub/kubespawner/pull/81 and https://github.com/kubernetes-client/python-base/pull/109."""
    with following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        server.wait_for_watches()
        version = server.store.revision
        for request in server.requests:
            if not request.is_watch or request.is_streaming_list:
                assert "resourceVersion" not in request.query
            else:
                assert request.query["resourceVersion"] == str(version)
            if request.is_watch:
                assert request.query["allowWatchBookmarks"] == "true"
                assert 300 <= int(request.query["timeoutSeconds"]) <= 600


def test_a_quiet_watch_goes_on_as_long_as_bookmarks_come(tmp_path):
    """Also the one that began as a streamed list, whose answers were waited for more impatiently."""
    timings = Timings(answer=0.6, silence=6.0, first_backoff=0.05, most_backoff=0.4)
    with serving(bookmark_seconds=2.0) as server, following(server, tmp_path, timings) as proxy:
        proxy.sink.wait_for_start()
        server.wait_for_watches()
        asked = len(server.requests)
        begun = server.requests[-1].time
        proxy.server.wait(lambda: time.monotonic() > begun + 5, "time stood still")
        assert len(server.requests) == asked
        assert not proxy.logged("following interrupted")


def test_bookmarks_carry_a_quiet_watch_past_a_compaction(tmp_path):
    """https://github.com/kubernetes-client/python/issues/1404: versions did not advance where nothing happened."""
    with serving() as server, following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        server.wait_for_watches()
        server.put(*(node("node-b", f"10.244.{index}.0/24") for index in range(50)))  # none of our business
        time.sleep(2.5 * BOOKMARK_SECONDS)
        server.compact()
        asked = time.monotonic()
        server.tell(lambda exchange: exchange.end())
        server.wait_for_watches(since=asked)
        server.put(service("web", ports=[{"port": 83}]))
        proxy.wait_until_equal()
        assert not server.asked(verb="list", since=asked)
        assert not [request for request in server.asked(since=asked) if request.is_streaming_list]
        assert all(request.status == 200 for request in server.asked(since=asked))


def test_bookmarks_are_no_changes(tmp_path):
    with serving(bookmark_seconds=0.05) as server, following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        server.wait_for_watches()
        batches = len(proxy.sink.batches)
        time.sleep(0.5)
        assert len(proxy.sink.batches) == batches
        assert not proxy.sink.problems


def test_a_resource_that_the_server_does_not_have_is_done_without_and_found_when_it_comes(tmp_path):
    with serving() as server:
        missing = Refuse(404, kind="ServiceCIDR")
        server.faults.append(missing)
        with following(server, tmp_path) as proxy:
            proxy.sink.wait_for_start()
            proxy.wait_until_healthy()
            assert "404" in proxy.health("ServiceCIDR").detail
            server.faults.remove(missing)
            proxy.wait_until_equal()


def test_a_resource_that_may_not_be_read_is_waited_for(tmp_path):
    """Rules are not to be written from half of the objects, so nobody says that they are complete."""
    with serving() as server:
        forbidden = Refuse(403, message="may not list", kind="EndpointSlice")
        server.faults.append(forbidden)
        with following(server, tmp_path) as proxy:
            proxy.sink.wait(lambda: {"Service", "Node", "ServiceCIDR"} <= set(proxy.sink.completed))
            assert "may not list" in proxy.wait_until_unhealthy("EndpointSlice")
            server.wait(lambda: forbidden.hits >= 3, "not asked again")
            assert "EndpointSlice" not in proxy.sink.completed
            server.faults.clear()
            proxy.sink.wait_for_start()
            proxy.wait_until_equal()
            proxy.wait_until_healthy()


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_lines_are_read_wherever_chunks_end(tmp_path, size):
    """Within characters of several bytes, too."""
    with serving() as server:
        server.faults.append(SmallChunks(size=size))
        with following(server, tmp_path) as proxy:
            proxy.sink.wait_for_start()
            odd = service("web", sessionAffinity="ClientIP")
            odd["metadata"]["annotations"] = {"example.com/motto": "überall 日本語 🐙 \u2028 \\n", "x": "y" * 300}
            server.put(odd, service("b"))
            proxy.wait_until_equal()


def test_lines_of_two_megabytes_are_read(tmp_path):
    with serving() as server, following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        big = service("web", ports=[{"port": 84}])
        big["metadata"]["annotations"] = {"example.com/big": "ж" * 1_000_000}
        server.put(big)
        proxy.wait_until_equal()
        again = endpoint_slice(endpoints=[{"addresses": [f"10.{i // 250}.{i % 250}.1"]} for i in range(1000)])
        again["metadata"]["annotations"] = {"example.com/big": "x" * 2_000_000}
        server.put(again)
        proxy.wait_until_equal()


def test_many_events_in_one_piece_are_one_batch_in_order(tmp_path):
    with serving() as server, following(server, tmp_path) as proxy:
        proxy.sink.wait_for_start()
        server.wait_for_watches()
        batches = len(proxy.sink.batches)
        server.put(*(service("web", ports=[{"port": port}]) for port in range(1000, 1400)))
        proxy.wait_until_equal()
        assert len(proxy.sink.batches) - batches < 100
        versions = proxy.sink.versions[WEB]
        assert versions == sorted(versions)


def test_lists_are_compressed_where_that_is_worth_it_and_watches_are_not(tmp_path):
    with serving() as server:
        server.faults.append(NoStreamingLists())
        server.put(*many_services(1000))
        with following(server, tmp_path) as proxy:
            proxy.sink.wait_for_start()
            proxy.wait_until_equal()
            for request in server.requests:
                wants = "gzip" in request.headers.get("accept-encoding", "")
                assert wants is not request.is_watch


def test_pages_that_expire_underway_are_read_anew(tmp_path):
    """A continue token lives until the next compaction, five minutes at most."""
    with serving() as server:
        server.put(*many_services(1700))
        server.faults.append(NoStreamingLists())

        def happens():
            return server.delete("Service", "s3", "shop"), server.put(service("late")), server.compact()

        server.faults.append(Before(call=happens, kind="Service", verb="list"))
        with following(server, tmp_path) as proxy:
            proxy.sink.wait_for_start()
            proxy.wait_until_equal()
            assert ObjectKey("Service", "shop", "s3") not in proxy.sink.objects
            assert len(server.asked("Service", "list")) <= 8


def test_a_source_is_started_once(tmp_path):
    with serving() as server, following(server, tmp_path) as proxy, pytest.raises(SourceError, match="already"):
        proxy.source.start(proxy.sink)


def _labelled(name, key, value):
    return {"name": name, "namespace": "shop", "labels": {key: value}}
