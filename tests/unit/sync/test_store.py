"""The store: what a source said last, and what changed since somebody looked."""

import threading
from collections.abc import Sequence

import pytest

from nodeproxy.kube.addresses import Family
from nodeproxy.kube.objects import KINDS
from nodeproxy.kube.source import Change, Problem
from nodeproxy.sync.store import ServiceKey, ServiceView, Store

from .support import NODE, change, endpoints, gone, node, service, service_cidr

WEB, API = ServiceKey("ns", "web"), ServiceKey("ns", "api")


class Woken(Store):
    """A store that counts its wake-ups."""

    def __init__(self, *, complete: bool = True) -> None:
        self.wakes = 0
        self.problems: list[Sequence[Problem]] = []
        super().__init__(self._count, self.problems.append)
        if complete:
            for kind in KINDS:
                self.complete(kind)
            self.wakes = 0

    def _count(self) -> None:
        self.wakes += 1


@pytest.fixture
def store() -> Woken:
    return Woken()


def names(view: ServiceView) -> list[str]:
    return sorted(item.metadata.name for item in view.slices)


def test_wakes_only_when_every_kind_is_complete() -> None:
    store = Woken(complete=False)
    store.apply([service("web"), node()])
    for kind in KINDS[:-1]:
        store.complete(kind)
        assert not store.is_complete
    assert store.wakes == 0
    store.complete(KINDS[-1])
    assert store.is_complete
    assert store.wakes == 1
    assert set(store.take().services) == {WEB}


def test_completing_again_after_a_relist_keeps_it_complete(store: Woken) -> None:
    store.complete("Service")
    assert store.is_complete


def test_a_batch_wakes_once(store: Woken) -> None:
    store.apply([service("web"), service("api", 11), endpoints("web", [1])])
    assert store.wakes == 1
    changes = store.take()
    assert set(changes.services) == {WEB, API}
    assert names(changes.services[WEB]) == ["web-1"]


def test_an_empty_batch_wakes_nobody(store: Woken) -> None:
    store.apply([])
    assert store.wakes == 0


def test_changes_are_handed_over_once_and_as_they_are_now(store: Woken) -> None:
    store.apply([service("web", 10)])
    store.apply([service("web", 12)])
    changed = store.take().services
    assert changed[WEB].service is not None
    assert changed[WEB].service.spec.cluster_ip == "10.96.0.12"
    assert store.take().services == {}


def test_deleted_service_is_handed_over_as_none_and_its_slices_stay(store: Woken) -> None:
    store.apply([service("web"), endpoints("web", [1])])
    store.take()
    store.apply([gone("Service", "web")])
    view = store.take().services[WEB]
    assert view.service is None
    assert names(view) == ["web-1"]
    assert store.everything() == {}
    store.apply([service("web")])
    assert names(store.take().services[WEB]) == ["web-1"]


def test_slices_that_come_before_their_service_wait_for_it(store: Woken) -> None:
    store.apply([endpoints("web", [1])])
    assert store.take().services[WEB].service is None
    store.apply([service("web")])
    assert names(store.view(WEB)) == ["web-1"]


def test_slice_that_moves_changes_both_services(store: Woken) -> None:
    store.apply([service("web"), service("api", 11), endpoints("web", [1], name="s"), endpoints("web", [2], name="t")])
    store.take()
    store.apply([endpoints("api", [1], name="s")])
    changed = store.take().services
    assert {key: names(view) for key, view in changed.items()} == {WEB: ["t"], API: ["s"]}


def test_slice_that_loses_its_label_leaves_its_service(store: Woken) -> None:
    store.apply([service("web"), endpoints("web", [1], name="s")])
    store.take()
    store.apply([endpoints(None, [1], name="s")])
    changed = store.take().services
    assert {key: names(view) for key, view in changed.items()} == {WEB: []}


def test_slice_that_is_labelled_headless_leaves_its_service_until_it_is_not(store: Woken) -> None:
    labels = {"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""}
    headless = change("EndpointSlice", "s", "ns", metadata={"labels": labels}, addressType="IPv4", endpoints=[])
    store.apply([service("web"), headless])
    assert {key: names(view) for key, view in store.take().services.items()} == {WEB: []}
    store.apply([endpoints("web", [1], name="s")])
    assert {key: names(view) for key, view in store.take().services.items()} == {WEB: ["s"]}
    store.apply([headless])
    assert {key: names(view) for key, view in store.take().services.items()} == {WEB: []}
    store.apply([gone("EndpointSlice", "s")])
    assert store.take().services == {}


def test_unlabelled_slice_changes_nothing_until_it_is_labelled(store: Woken) -> None:
    store.apply([service("web"), endpoints(None, [1], name="s")])
    assert {key: names(view) for key, view in store.take().services.items()} == {WEB: []}
    store.apply([endpoints("web", [1], name="s")])
    assert names(store.take().services[WEB]) == ["s"]


def test_deleted_slice_leaves_its_service_and_may_go_twice(store: Woken) -> None:
    store.apply([service("web"), endpoints("web", [1], name="s"), endpoints("web", [2], name="t")])
    store.take()
    store.apply([gone("EndpointSlice", "s")])
    assert names(store.take().services[WEB]) == ["t"]
    store.apply([gone("EndpointSlice", "s"), gone("Service", "never"), gone("Node", "never", "")])
    assert set(store.take().services) == {ServiceKey("ns", "never")}


def test_slice_belongs_to_the_service_of_its_own_namespace(store: Woken) -> None:
    other = service("web")
    assert other.object is not None
    store.apply([endpoints("web", [1]), Change(other.key._replace(namespace="elsewhere"), other.object)])
    assert names(store.view(ServiceKey("elsewhere", "web"))) == []


def test_nodes_and_service_cidrs_are_surroundings(store: Woken) -> None:
    assert store.take().surroundings, "the first look is at everything"
    for changes in ([node()], [service_cidr("10.96.0.0/12")], [gone("Node", NODE, "")]):
        store.apply(changes)
        taken = store.take()
        assert taken.surroundings
        assert taken.services == {}
        assert not store.take().surroundings
    store.apply([service("web")])
    assert not store.take().surroundings


def test_node_is_found_by_its_name_until_it_is_gone(store: Woken) -> None:
    store.apply([node(zone="a")])
    found = store.node(NODE)
    assert found is not None
    assert store.node("other") is None
    store.apply([gone("Node", NODE, "")])
    assert store.node(NODE) is None


def test_service_cidrs_are_those_of_all_objects_by_family(store: Woken) -> None:
    store.apply([service_cidr("10.96.0.0/12", "fd00:96::/112"), service_cidr("10.0.0.0/24", "10.96.0.0/12", name="b")])
    assert store.service_cidrs(Family.IPV4) == ("10.0.0.0/24", "10.96.0.0/12")
    assert store.service_cidrs(Family.IPV6) == ("fd00:96::/112",)
    store.apply([gone("ServiceCIDR", "kubernetes", "")])
    assert store.service_cidrs(Family.IPV6) == ()


def test_problems_are_passed_on(store: Woken) -> None:
    problem = Problem("file#1", "Service ns/web", "spec", "bad")
    store.report([problem])
    store.report([])
    assert store.problems == [[problem], []]


def test_batches_from_another_thread_are_never_seen_in_part() -> None:
    """A Service and its slice of one batch are taken together, whenever one looks."""
    store = Woken()
    ready = threading.Event()

    def produce() -> None:
        ready.wait(5)
        for number in range(300):
            store.apply([service("web", number % 200 + 1), endpoints("web", [number % 200 + 1])])

    thread = threading.Thread(target=produce)
    thread.start()
    ready.set()
    seen = 0
    while thread.is_alive() or seen == 0:
        view = store.take().services.get(WEB)
        if view is not None:
            seen += 1
            assert view.service is not None
            (entries,) = (item.endpoints or () for item in view.slices)
            assert view.service.spec.cluster_ip == entries[0].addresses[0].replace("10.244", "10.96")
    thread.join(5)
    assert seen > 0
