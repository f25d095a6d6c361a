"""Parts that many objects have in common are in memory once, and lists are read an item at a time."""

import json
from typing import Any

import pytest

from nodeproxy.kube import manifest_files
from nodeproxy.kube.decode import decode_json
from nodeproxy.kube.manifest_files import parse_manifest
from nodeproxy.kube.objects import EndpointSlice


def _slice(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": ["10.0.0.1"],
                "nodeName": "node-a",
                "conditions": {"ready": True, "serving": True},
                "hints": {"forZones": [{"name": "z1"}]},
            }
        ],
        **changes,
    }


def _service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": "172.30.0.1", "ports": [{"port": 80}]},
    }


def test_equal_parts_of_slices_are_one_object() -> None:
    """A node's name, conditions, hints and ports: at 100,000 endpoints, half of the memory."""
    first, second = (decode_json(json.dumps(_slice(name)).encode(), name).object for name in ("one", "two"))
    assert isinstance(first, EndpointSlice)
    assert isinstance(second, EndpointSlice)
    assert first != second
    assert first.endpoints
    assert second.endpoints
    one, two = first.endpoints[0], second.endpoints[0]
    assert one.node_name is two.node_name
    assert one.conditions is two.conditions
    assert one.hints is two.hints
    assert first.ports is second.ports
    assert first.metadata.namespace is second.metadata.namespace


def test_different_parts_stay_different() -> None:
    """Sharing never confuses values that only look alike."""
    states: list[dict[str, bool | None]] = [{}, {"ready": None}, {"ready": False}, {"serving": False}, {"ready": True}]
    for state in states:
        endpoint = {"addresses": ["10.0.0.1"], "conditions": state}
        found = decode_json(json.dumps(_slice("one", endpoints=[endpoint])).encode(), "one").object
        assert isinstance(found, EndpointSlice)
        assert found.endpoints
        conditions = found.endpoints[0].conditions
        assert conditions is not None
        assert (conditions.ready, conditions.serving) == (state.get("ready"), state.get("serving"))


_LISTS: dict[str, dict[str, Any]] = {
    "plain": {"apiVersion": "v1", "kind": "List", "items": [_service("a"), _slice("b"), _service("c")]},
    "typed": {"apiVersion": "v1", "kind": "ServiceList", "items": [{**_service("a"), "kind": None}, _service("b")]},
    "typed, items without kind and version": {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSliceList",
        "items": [{key: value for key, value in _slice("a").items() if key not in {"kind", "apiVersion"}}],
    },
    "empty": {"apiVersion": "v1", "kind": "List", "items": []},
    "null": {"apiVersion": "v1", "kind": "List", "items": None},
    "no items": {"apiVersion": "v1", "kind": "List"},
    "items are no list": {"apiVersion": "v1", "kind": "List", "items": {"a": 1}},
    "items are no objects": {"apiVersion": "v1", "kind": "List", "items": [1, "two", None, _service("a")]},
    "other kinds": {"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod"}, _service("a")]},
    "another list": {"apiVersion": "apps/v1", "kind": "DeploymentList", "items": [{"kind": "Deployment"}]},
    "another version": {"apiVersion": "v2", "kind": "List", "items": [_service("a")]},
    "a list in a list": {
        "apiVersion": "v1",
        "kind": "List",
        "items": [_service("a"), {"apiVersion": "v1", "kind": "List", "items": [_service("b")]}],
    },
    "a kind that is no text": {"apiVersion": "v1", "kind": "List", "items": [{"kind": 1}, _service("a")]},
    "bad fields": {
        "apiVersion": "v1",
        "kind": "List",
        "items": [{**_service("a"), "spec": {"clusterIP": 7}}, _slice("b", ports=[{"port": 0}])],
    },
}


@pytest.mark.parametrize("name", _LISTS)
def test_lists_read_an_item_at_a_time_say_what_they_say_as_a_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way for lists yields the objects, origins, problems and ignored kinds of the long one."""
    data = json.dumps(_LISTS[name]).encode()
    short = parse_manifest(data, "file.json")
    monkeypatch.setattr(manifest_files, "_take_plain_list", lambda *_: False)
    assert parse_manifest(data, "file.json") == short
