"""Endpoints: the union of a Service's slices, one winner per address and port."""

import itertools
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeproxy.kube.addresses import Family
from nodeproxy.kube.objects import (
    EndpointConditions,
    EndpointEntry,
    EndpointHints,
    EndpointPort,
    EndpointSlice,
    Hint,
    Labels,
    ObjectMeta,
)
from nodeproxy.model.endpoints import Endpoint, merge_slices, owner

HTTP = EndpointPort(name="http", port=8080, protocol="TCP")


def entry(
    address: str = "10.0.0.1", node: str | None = None, hints: EndpointHints | None = None, **conditions: bool | None
) -> EndpointEntry:
    state = EndpointConditions(**conditions) if conditions else None
    return EndpointEntry(addresses=(address,), node_name=node, hints=hints, conditions=state)


def a_slice(
    *entries: EndpointEntry, ports: Any = (HTTP,), address_type: Any = "IPv4", name: str = "s"
) -> EndpointSlice:
    meta = ObjectMeta(name=name, namespace="shop", labels=Labels(service_name="web"))
    return EndpointSlice(metadata=meta, address_type=address_type, endpoints=entries, ports=ports)


def http(*slices: EndpointSlice) -> tuple[Endpoint, ...]:
    return merge_slices(slices, Family.IPV4).get(("http", "TCP"), ())


def test_endpoints_are_the_union_over_slices_keyed_by_port_name_and_protocol() -> None:
    merged = merge_slices(
        [
            a_slice(entry("10.0.0.1"), ports=(HTTP, EndpointPort(name="dns", port=53, protocol="UDP"))),
            a_slice(entry("10.0.0.2"), ports=(EndpointPort(name="http", port=9090, protocol="TCP"),)),
        ],
        Family.IPV4,
    )
    assert merged == {
        ("http", "TCP"): (Endpoint("10.0.0.1", 8080), Endpoint("10.0.0.2", 9090)),
        ("dns", "UDP"): (Endpoint("10.0.0.1", 53),),
    }


def test_one_port_number_for_two_protocols_makes_two_keys() -> None:
    ports = (EndpointPort(name="dns", port=53, protocol="UDP"), EndpointPort(name="dns", port=53, protocol="TCP"))
    assert set(merge_slices([a_slice(entry(), ports=ports)], Family.IPV4)) == {("dns", "UDP"), ("dns", "TCP")}


@pytest.mark.parametrize(
    ("port", "keys"),
    [
        (EndpointPort(port=80), {("", "TCP")}),
        (EndpointPort(name="", port=80), {("", "TCP")}),
        (EndpointPort(name="x", port=80, protocol="SCTP"), {("x", "SCTP")}),
        (EndpointPort(name="x"), set()),
        (EndpointPort(name="x", port=0), set()),
    ],
)
def test_a_port_without_name_is_unnamed_and_without_number_is_nothing(port: EndpointPort, keys: set[object]) -> None:
    assert set(merge_slices([a_slice(entry(), ports=(port,))], Family.IPV4)) == keys


@pytest.mark.parametrize(
    "empty",
    [
        a_slice(entry(), ports=None),
        a_slice(entry(), ports=()),
        a_slice(),
        msgspec.structs.replace(a_slice(), endpoints=None),
        a_slice(EndpointEntry()),
        a_slice(entry("fd00::1"), address_type="IPv6"),
        a_slice(entry("example.org"), address_type="FQDN"),
    ],
)
def test_slices_with_nothing_for_the_family_contribute_nothing(empty: EndpointSlice) -> None:
    assert merge_slices([empty], Family.IPV4) == {}


def test_an_address_of_the_other_family_is_left_out() -> None:
    mixed = (entry("10.0.0.1"), entry("fd00::1"))
    assert [e.address for e in http(a_slice(*mixed))] == ["10.0.0.1"]
    six = merge_slices([a_slice(*mixed, address_type="IPv6")], Family.IPV6)
    assert [e.address for e in six["http", "TCP"]] == ["fd00::1"]


def test_only_the_first_address_counts() -> None:
    assert http(a_slice(EndpointEntry(addresses=("10.0.0.2", "10.0.0.1")))) == (Endpoint("10.0.0.2", 8080),)


@pytest.mark.parametrize(
    ("conditions", "ready", "serving", "terminating"),
    [
        (None, True, True, False),
        (EndpointConditions(), True, True, False),
        (EndpointConditions(ready=False), False, True, False),
        (EndpointConditions(serving=False), True, False, False),
        (EndpointConditions(terminating=True), True, True, True),
        (EndpointConditions(ready=False, serving=True, terminating=True), False, True, True),
        (EndpointConditions(ready=True, serving=True, terminating=False), True, True, False),
    ],
)
def test_unset_conditions_are_ready_serving_and_not_terminating(
    conditions: EndpointConditions | None, ready: bool, serving: bool, terminating: bool
) -> None:
    (found,) = http(a_slice(EndpointEntry(addresses=("10.0.0.1",), conditions=conditions)))
    assert (found.ready, found.serving, found.terminating) == (ready, serving, terminating)


def test_node_names_and_hints_are_taken_over() -> None:
    hints = EndpointHints(for_zones=(Hint(name="a"), Hint(name="b")), for_nodes=(Hint(name="n1"),))
    (found,) = http(a_slice(entry(node="n1", hints=hints)))
    assert found == Endpoint("10.0.0.1", 8080, "n1", zone_hints=frozenset({"a", "b"}), node_hints=frozenset({"n1"}))
    (bare,) = http(a_slice(entry(hints=EndpointHints())))
    assert (bare.node_name, bare.zone_hints, bare.node_hints) == ("", frozenset(), frozenset())


def test_equal_hints_share_one_set() -> None:
    made = [entry(f"10.0.0.{n}", hints=EndpointHints(for_zones=(Hint(name="a"),))) for n in (1, 2)]
    first, second = http(a_slice(*made))
    assert first.zone_hints is second.zone_hints


def test_endpoints_are_sorted_as_text() -> None:
    four = http(a_slice(*(entry(f"10.0.0.{n}") for n in (3, 20, 10, 2))))
    assert [e.address for e in four] == ["10.0.0.10", "10.0.0.20", "10.0.0.2", "10.0.0.3"]
    six = merge_slices([a_slice(entry("fd00::2"), entry("fd00::10"), address_type="IPv6")], Family.IPV6)
    assert [e.sort_key for e in six["http", "TCP"]] == ["[fd00::10]:8080", "[fd00::2]:8080"]


READY = entry(node="b", ready=True)
STAND_IN = entry(node="c", ready=False, serving=True, terminating=True)
DEAD = entry(node="a", ready=False, serving=False, terminating=True)
STARTING = entry(node="a", ready=False, serving=True, terminating=False)


@pytest.mark.parametrize(
    ("entries", "winner"),
    [
        ((DEAD, READY), "b"),
        ((STARTING, READY), "b"),
        ((STAND_IN, READY), "b"),
        ((DEAD, STAND_IN), "c"),
        ((STARTING, STAND_IN), "c"),
        ((DEAD, STARTING, STAND_IN, READY), "b"),
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_the_most_usable_of_several_entries_for_one_address_wins(
    entries: tuple[EndpointEntry, ...], winner: str, split: bool
) -> None:
    for order in itertools.permutations(entries):
        slices = [a_slice(one) for one in order] if split else [a_slice(*order)]
        (found,) = http(*slices)
        assert found.node_name == winner


def test_of_two_ready_entries_the_one_that_stays_wins() -> None:
    going, staying = entry(node="a", ready=True, terminating=True), entry(node="b", ready=True)
    for order in ((going, staying), (staying, going)):
        assert [e.node_name for e in http(a_slice(*order))] == ["b"]


def test_of_two_equally_usable_entries_the_one_whose_node_is_known_wins() -> None:
    for order in ((entry(), entry(node="b")), (entry(node="b"), entry())):
        assert [e.node_name for e in http(a_slice(*order))] == ["b"]


def test_the_same_address_on_another_port_is_another_endpoint() -> None:
    other = (EndpointPort(name="http", port=8081),)
    assert [e.port for e in http(a_slice(entry()), a_slice(entry(), ports=other))] == [8080, 8081]


FLAGS = st.sampled_from([None, True, False])
HINTS = st.none() | st.lists(st.sampled_from("xyz"), max_size=2).map(lambda names: tuple(Hint(name=n) for n in names))
ENTRIES = st.builds(
    EndpointEntry,
    addresses=st.sampled_from([(), ("10.0.0.1",), ("10.0.0.2",), ("10.0.0.10", "10.0.0.1")]),
    conditions=st.none() | st.builds(EndpointConditions, ready=FLAGS, serving=FLAGS, terminating=FLAGS),
    node_name=st.sampled_from([None, "", "a", "b"]),
    hints=st.none() | st.builds(EndpointHints, for_zones=HINTS, for_nodes=HINTS),
)
PORTS = st.lists(
    st.builds(EndpointPort, name=st.sampled_from([None, "", "p"]), port=st.sampled_from([None, 1, 2])), max_size=3
)
SLICES = st.lists(st.tuples(st.lists(ENTRIES, max_size=5), PORTS), max_size=4)


@given(SLICES, st.randoms(use_true_random=False))
def test_the_order_of_slices_entries_and_ports_does_not_matter(slices: list[Any], random: Any) -> None:
    straight = merge_slices([a_slice(*entries, ports=tuple(ports)) for entries, ports in slices], Family.IPV4)
    for entries, ports in slices:
        random.shuffle(entries)
        random.shuffle(ports)
    random.shuffle(slices)
    mixed = merge_slices([a_slice(*entries, ports=tuple(ports)) for entries, ports in slices], Family.IPV4)
    assert mixed == straight
    for endpoints in straight.values():
        keys = [endpoint.sort_key for endpoint in endpoints]
        assert keys == sorted(set(keys))


def test_slices_are_not_changed() -> None:
    slices = [a_slice(entry("10.0.0.2"), entry("10.0.0.1"), ports=(HTTP, EndpointPort(name="a", port=1)))]
    before = msgspec.json.encode(slices)
    merge_slices(slices, Family.IPV4)
    assert msgspec.json.encode(slices) == before


def test_the_owner_is_named_by_the_label() -> None:
    assert owner(a_slice()) == ("shop", "web")
    for labels in (None, Labels(), Labels(service_name="")):
        bare = EndpointSlice(metadata=ObjectMeta(name="s", namespace="shop", labels=labels), address_type="IPv4")
        assert owner(bare) is None


def test_local_means_exactly_this_node_and_no_name_is_no_node() -> None:
    assert Endpoint("10.0.0.1", 80, "n1").is_local("n1")
    assert not Endpoint("10.0.0.1", 80, "N1").is_local("n1")
    assert not Endpoint("10.0.0.1", 80, "n1.example").is_local("n1")
    assert not Endpoint("10.0.0.1", 80, "").is_local("")


def test_a_hundred_thousand_endpoints_merge_within_seconds() -> None:
    hints = EndpointHints(for_zones=(Hint(name="a"),))
    slices = [a_slice(*(entry(f"10.{s}.{n >> 8}.{n & 255}", f"n{n}", hints) for n in range(1000))) for s in range(100)]
    start = time.perf_counter()
    assert len(http(*slices)) == 100_000
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("value", ["", "true", "false"])
def test_slice_that_is_labelled_headless_belongs_to_no_service(value: str) -> None:
    """Whatever the value: service.kubernetes.io/headless says that no proxy is to serve it."""
    made = a_slice(entry())
    assert owner(made) == ("shop", "web")
    labels = Labels(service_name="web", headless=value)
    meta = msgspec.structs.replace(made.metadata, labels=labels)
    assert owner(msgspec.structs.replace(made, metadata=meta)) is None
