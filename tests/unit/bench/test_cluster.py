"""The generated cluster: the same each time, taken by the product as it is, and the same for every layout."""

import json

from bench import cluster, others, spoilt
from bench.proxy import decoded

SERVICES, ENDPOINTS = 300, 10


def test_it_is_the_same_each_time() -> None:
    assert list(cluster.objects(5)) == list(cluster.objects(5))


def test_a_bigger_one_begins_like_a_smaller_one() -> None:
    small = list(cluster.objects(3))
    assert list(cluster.objects(5))[: len(small)] == small


def test_every_object_is_taken_without_a_problem() -> None:
    changes = [decoded(document) for document in cluster.objects(SERVICES)]
    assert len({change.key for change in changes}) == 2 + 2 * SERVICES


def test_no_address_serves_twice() -> None:
    pods = [address for number in range(SERVICES) for address in cluster.pods(number, ENDPOINTS)]
    ips = [cluster.cluster_ip(number) for number in range(SERVICES)]
    moved = [cluster.pods(number, ENDPOINTS, version=number + 1)[-1] for number in range(SERVICES)]
    assert len({*pods, *ips, *moved}) == SERVICES * (ENDPOINTS + 2)


def test_one_endpoint_in_a_hundred_is_on_the_own_node() -> None:
    nodes = [cluster.node_of(number, index) for number in range(SERVICES) for index in range(ENDPOINTS)]
    assert nodes.count(cluster.NODE) == SERVICES * ENDPOINTS // 100


def test_a_change_moves_one_endpoint_of_its_service() -> None:
    before, after = (json.loads(cluster.endpoint_slice(7, ENDPOINTS, version)) for version in (0, 3))
    moved = [pair for pair in zip(before["endpoints"], after["endpoints"], strict=True) if pair[0] != pair[1]]
    assert len(moved) == 1
    assert before["metadata"]["name"] == after["metadata"]["name"]


def test_a_file_holds_a_service_and_its_slice() -> None:
    found = json.loads(cluster.bundle(7))
    assert [item["kind"] for item in found["items"]] == ["Service", "EndpointSlice"]
    assert found["items"] == [json.loads(cluster.service(7)), json.loads(cluster.endpoint_slice(7))]


def test_the_other_layout_has_the_same_frontends_and_endpoints() -> None:
    service = others.described(7, ENDPOINTS)
    assert service.cluster_ip == cluster.cluster_ip(7)
    assert [endpoint.address for endpoint in service.endpoints] == cluster.pods(7, ENDPOINTS)
    spec = json.loads(cluster.service(7))["spec"]["ports"][0]
    assert (service.port, service.port_name, service.protocol) == (spec["port"], spec["name"], spec["protocol"].lower())
    local = [entry["nodeName"] == cluster.NODE for entry in json.loads(cluster.endpoint_slice(7))["endpoints"]]
    assert [endpoint.local for endpoint in service.endpoints] == local


def test_spoilt_services_are_spread_over_all() -> None:
    assert spoilt.numbers(10_000, 7) == [714, 2142, 3571, 5000, 6428, 7857, 9285]
    assert len(set(spoilt.numbers(20, 7))) == 7
