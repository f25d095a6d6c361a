"""Decoding: bad parts cost as little as is safe, and every loss is told."""

import copy
import json

import pytest

from nodeproxy.kube.decode import decode, decode_json, key_of
from nodeproxy.kube.source import ObjectKey

from .support import endpoint_slice, service


def both(raw):
    """Decode as builtins and as JSON, which must agree."""
    before = copy.deepcopy(raw)
    decoded = decode(raw, "a.yaml#1")
    assert raw == before, "input must not be changed"
    assert decode_json(json.dumps(raw).encode(), "a.yaml#1") == decoded
    return decoded


def fields(decoded):
    return [problem.field for problem in decoded.problems]


def fatal(decoded):
    assert decoded.object is None
    assert [problem.fatal for problem in decoded.problems].count(True) == 1
    return decoded.problems[-1]


def test_a_good_service_has_no_problems():
    decoded = both(service())
    assert decoded.problems == ()
    assert decoded.key == ObjectKey("Service", "shop", "web")
    assert decoded.object.spec.cluster_ip == "10.96.0.10"


def test_a_port_of_the_wrong_type_costs_that_port_only():
    decoded = both(service(ports=[{"port": 80}, {"name": "b", "port": "x"}, {"name": "c", "port": 82}]))
    assert [port.port for port in decoded.object.spec.ports] == [80, 82]
    (problem,) = decoded.problems
    assert (problem.origin, problem.subject, problem.field) == ("a.yaml#1", "Service shop/web", "spec.ports[1].port")
    assert "'x'" in problem.reason
    assert not problem.fatal


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (7, "endpoints[1]"),
        ({"addresses": "10.0.0.2"}, "endpoints[1].addresses"),
        ({"addresses": [5]}, None),
        ({"addresses": ["junk"]}, "endpoints[1].addresses[0]"),
        ({"addresses": ["2001:db8::1"]}, "endpoints[1].addresses[0]"),
        ({"addresses": ["10.0.0.2"], "conditions": {"ready": "yes"}}, "endpoints[1].conditions.ready"),
        ({"addresses": ["10.0.0.2"], "conditions": []}, "endpoints[1].conditions"),
    ],
)
def test_a_bad_endpoint_costs_that_endpoint_only(entry, field):
    decoded = both(endpoint_slice(endpoints=[{"addresses": ["10.0.0.1"]}, entry, {"addresses": ["10.0.0.3"]}]))
    served = [endpoint.addresses[0] for endpoint in decoded.object.endpoints if endpoint.addresses]
    assert served == ["10.0.0.1", "10.0.0.3"]
    assert fields(decoded) == [field or "endpoints[1].addresses[0]"]


def test_a_bad_hint_or_node_name_costs_no_endpoint():
    entry = {"addresses": ["10.0.0.1"], "nodeName": 5, "hints": {"forZones": [{"name": 1}, {"name": "b"}]}}
    decoded = both(endpoint_slice(endpoints=[entry]))
    (endpoint,) = decoded.object.endpoints
    assert endpoint.node_name is None
    assert [hint.name for hint in endpoint.hints.for_zones] == ["b"]
    assert fields(decoded) == ["endpoints[0].nodeName", "endpoints[0].hints.forZones[0].name"]


def test_null_lists_and_fields_are_like_absent_ones():
    """The API server sends ``endpoints: null`` for a Service scaled to zero."""
    decoded = both(endpoint_slice(endpoints=None, ports=None))
    assert decoded.problems == ()
    assert not decoded.object.endpoints
    decoded = both(endpoint_slice(endpoints=[{"addresses": None, "conditions": {}}], ports=[{"name": "http"}]))
    assert decoded.problems == ()
    assert decoded.object.endpoints[0].addresses == ()
    assert decoded.object.endpoints[0].conditions.ready is None
    assert decoded.object.ports[0].port is None
    assert both(service(type=None, externalIPs=None)).object.spec.type == "ClusterIP"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"type": "Proxy"}, "spec.type"),
        ({"externalTrafficPolicy": "local"}, "spec.externalTrafficPolicy"),
        ({"internalTrafficPolicy": 1}, "spec.internalTrafficPolicy"),
    ],
)
def test_a_field_whose_default_would_open_more_costs_the_service(change, field):
    decoded = both(service(**change))
    assert fatal(decoded).field == field
    assert decoded.key == ObjectKey("Service", "shop", "web")


@pytest.mark.parametrize("ranges", ["10.0.0.0/8", [1, 2], {"a": 1}, ["junk"], [""], [[]]])
def test_unreadable_source_ranges_close_the_service(ranges):
    decoded = both(service(type="LoadBalancer", loadBalancerSourceRanges=ranges))
    assert decoded.object.spec.load_balancer_source_ranges == ()
    assert "closed to all" in decoded.problems[-1].reason


@pytest.mark.parametrize("raw", [service(), endpoint_slice()], ids=["Service", "EndpointSlice"])
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": None}, "metadata.name"),
        ({"name": ""}, "metadata.name"),
        ({"name": 5}, "metadata.name"),
        ({"name": "UPPER"}, "metadata.name"),
        ({"name": "a\n"}, "metadata.name"),
        ({"name": "a" * 254}, "metadata.name"),
        ({"namespace": "a.b"}, "metadata.namespace"),
        ({"namespace": 5}, "metadata.namespace"),
    ],
)
def test_a_bad_key_costs_the_object(raw, change, field):
    decoded = both({**raw, "metadata": {**raw["metadata"], **change}})
    problem = fatal(decoded)
    assert (problem.field, problem.subject, decoded.key) == (field, "", None)


def test_names_of_services_are_labels_and_names_of_slices_subdomains():
    assert both({**service(), "metadata": {"name": "a.b"}}).object is None
    assert both({**endpoint_slice(), "metadata": {"name": "a.b"}}).key == ObjectKey("EndpointSlice", "default", "a.b")


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({**service(), "spec": None}, "spec"),
        ({**service(), "spec": []}, "spec"),
        ({**service(), "metadata": None}, "metadata"),
        (endpoint_slice(addressType="IPv5"), "addressType"),
        (endpoint_slice(addressType=None), "addressType"),
        ({**service(), "metadata": {"name": "web", "labels": {"service.kubernetes.io/service-proxy-name": 1}}}, None),
    ],
)
def test_a_missing_or_unreadable_essential_costs_the_object(raw, field):
    problem = fatal(both(raw))
    assert problem.field == (field or "metadata.labels.service.kubernetes.io/service-proxy-name")


def test_namespaces_default_to_default_and_are_empty_for_cluster_scoped_kinds():
    decoded = both({**service(), "metadata": {"name": "web"}})
    assert decoded.key == ObjectKey("Service", "default", "web")
    assert decoded.object.metadata.namespace == "default"
    decoded = both({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1.example", "namespace": "x"}})
    assert decoded.key == ObjectKey("Node", "", "n1.example")
    assert decoded.object.metadata.namespace == ""


@pytest.mark.parametrize(
    ("kind", "api_version", "ignored"),
    [
        ("Service", "serving.knative.dev/v1", "serving.knative.dev/v1 Service"),
        ("Deployment", "apps/v1", "apps/v1 Deployment"),
        ("Endpoints", "v1", "v1 Endpoints"),
        ("EndpointSlice", "v1", "v1 EndpointSlice"),
    ],
)
def test_other_kinds_are_ignored_without_a_problem(kind, api_version, ignored):
    decoded = both({"kind": kind, "apiVersion": api_version, "metadata": {"name": "x"}, "spec": 5})
    assert decoded.ignored == ignored
    assert decoded[:3] == (None, None, ())


@pytest.mark.parametrize("api_version", ["discovery.k8s.io/v1beta1", None, ""])
def test_another_version_of_a_kind_is_reported(api_version):
    decoded = both(endpoint_slice(apiVersion=api_version))
    assert fatal(decoded).field == "apiVersion"
    what = "'discovery.k8s.io/v1beta1' of EndpointSlice is not supported" if api_version else "is missing"
    assert decoded.problems[0].reason == f"{what}: it must be discovery.k8s.io/v1"
    assert decoded.key == ObjectKey("EndpointSlice", "shop", "web-1")


@pytest.mark.parametrize("raw", [5, "text", [], [1], True, {}, {"kind": 5}, {"kind": "Service", "apiVersion": 1}])
def test_what_is_no_object_is_reported(raw):
    assert both(raw).problems[0].fatal


def test_items_of_typed_lists_need_no_kind():
    raw = service()
    del raw["kind"], raw["apiVersion"]
    assert decode(raw, "x", "Service") == decode_json(json.dumps(raw).encode(), "x", "Service")
    assert decode(raw, "x", "Service").object == decode(service(), "x").object
    assert decode(raw, "x").problems[0].field == "kind"


def test_what_is_not_json_is_reported():
    for data in (b"", b"{", b"\xff", b'{"kind": "Service"} x', b"[" * 100_000, b'{"a": "\\ud800"}'):
        assert decode_json(data, "x").problems[0].fatal


def test_values_are_quoted_short_and_on_one_line():
    decoded = both(service(sessionAffinity="x\n" * 5_000))
    (problem,) = decoded.problems
    assert len(problem.reason) < 250
    assert "\n" not in problem.reason


def test_keys_that_are_no_strings_do_no_harm():
    """YAML has them, as in ``1: x``."""
    raw = service()
    raw["metadata"]["labels"] = {1: "x", False: "y", "kubernetes.io/service-name": "web"}
    decoded = decode(raw, "x")
    assert decoded.problems == ()
    assert decoded.object.metadata.labels.service_name == "web"


def test_key_of_finds_the_key_of_an_object_that_cannot_be_decoded():
    assert key_of(service(type=1)) == ObjectKey("Service", "shop", "web")
    assert key_of({"metadata": {"name": "n"}}, "Node") == ObjectKey("Node", "", "n")
    for raw in (5, {}, {"kind": "Service"}, {"kind": "Service", "metadata": {"name": "A"}}, {"kind": []}):
        assert key_of(raw) is None
