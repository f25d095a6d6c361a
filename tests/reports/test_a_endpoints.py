"""Wrong rules for a Service's shape: what endpoint slices may hold, and hints."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from netns.addresses import FAMILIES, Family
from netns.agent import Agent
from netns.manifests import Manifest, both, cluster, endpoint, endpoint_slice, port_name, service
from netns.manifests import node as node_manifest
from netns.namespaces import Namespace
from netns.world import World
from nodeproxy.kube.addresses import Family as ProxyFamily
from nodeproxy.kube.decode import decode
from nodeproxy.kube.source import Change
from reports.support import DEAD, DRAINING, PROTOCOLS, TARGET, cluster_ip, entry, fate, shared_by, slices, vip
from unit.sync.support import Table
from unit.sync.support import node as known_node


@pytest.mark.parametrize("split", [False, True], ids=["one slice", "two slices"])
@pytest.mark.parametrize("dead_first", [False, True], ids=["dead last", "dead first"])
@pytest.mark.parametrize("kinds", [(DEAD, {}), (DRAINING, {}), (DEAD, DRAINING)], ids=["ready", "other", "draining"])
def test_a10_most_usable_of_two_entries_for_one_address_counts(
    world: World,
    agent: Agent,
    kinds: tuple[Mapping[str, Any], Mapping[str, Any]],
    dead_first: bool,
    split: bool,
) -> None:
    """kubernetes/kubernetes#135266: a dead pod with the address of a ready one cost the Service all its rules.

    Of entries for one address the most usable counts, whatever the order and the slice, with its node: a Local policy
    tells which one was taken.
    """
    pod = world.pod("pod-a1")
    shape = service("twice", 10, both(80), vips=[vip(10)], externalTrafficPolicy="Local", healthCheckNodePort=31010)
    worse, better = kinds

    def entries(family: Family) -> list[Manifest]:
        both_entries = [endpoint(pod, family, **{**worse, "nodeName": "node-b"}), endpoint(pod, family, **better)]
        return both_entries if dead_first else both_entries[::-1]

    if split:
        parts = [slices("twice", lambda family, i=i: entries(family)[i : i + 1], suffix=f"-{i}") for i in range(2)]
    else:
        parts = [slices("twice", entries)]
    agent.apply(a10=[shape, *(part for some in parts for part in some)])
    assert fate(world.pod("pod-a2"), cluster_ip(10)) == "pod-a1"
    assert fate(world.client, vip(10)) == "pod-a1"


A16_USED: dict[str, Manifest] = {
    "no conditions": {"conditions": None},
    "empty conditions": {"conditions": {}},
    "all unset": {"conditions": {"ready": None, "serving": None, "terminating": None}},
    "ready unset, not serving": {"conditions": {"ready": None, "serving": False}},
    "ready unset, terminating": {"conditions": {"terminating": True}},
    "terminating, not ready, serving unset": {"conditions": {"ready": False, "terminating": True}},
}
A16_UNUSED: dict[str, Manifest] = {
    "not ready": {"conditions": {"ready": False}},
    "not ready, terminating unset": {"conditions": {"ready": False, "serving": True, "terminating": None}},
}


@pytest.mark.parametrize("case", [*A16_USED, *A16_UNUSED])
def test_a16_unset_conditions_have_a_meaning(world: World, agent: Agent, case: str) -> None:
    """kubernetes/kubernetes#122623: slices written by hand, without conditions, were taken as not ready.

    Unset ``ready`` and ``serving`` count as true, each for itself, and unset ``terminating`` as false.
    """
    conditions = {**A16_USED, **A16_UNUSED}[case]
    absent = conditions["conditions"] is None
    shape = service("unset", 16, both(80))

    def entries(family: Family) -> list[Manifest]:
        one = endpoint(world.pod("pod-a1"), family, **conditions)
        if absent:
            del one["conditions"]
        return [one]

    agent.apply(a16=[shape, *slices("unset", entries)])
    assert fate(world.client, cluster_ip(16)) == ("pod-a1 as node" if case in A16_USED else "rejected")


A17_NAMES = ("ports-null", "port-without-number", "endpoints-null", "no-label", "host-names", "no-addresses")


def _partial(name: str, world: World, family: Family, suffix: str) -> Manifest:
    """A slice for the Service ``name`` with the fault of that name, and pod-a1 in it as far as it goes."""
    ports: list[Manifest] = [
        {"name": port_name(80, protocol), "protocol": protocol, "port": TARGET} for protocol in PROTOCOLS
    ]
    found = endpoint_slice(name, family, [endpoint(world.pod("pod-a1"), family)], ports, suffix=suffix)
    match name:
        case "ports-null":
            found["ports"] = None
        case "port-without-number":
            found["ports"] = [{key: value for key, value in one.items() if key != "port"} for one in ports]
        case "endpoints-null":
            found["endpoints"] = None
        case "no-label":
            found["metadata"]["labels"] = {}
        case "host-names":
            found["addressType"] = "FQDN"
            found["endpoints"] = [{"addresses": ["pod-a1.example"]}]
        case "no-addresses":
            found["endpoints"] = [{"addresses": []}, {"addresses": None}, {}]
    return found


@pytest.fixture(scope="module")
def partial_slices(world: World, agent: Agent) -> None:
    """Two Services for each fault: one with a faulty slice only, one with a good slice besides."""
    objects: list[Manifest] = []
    for index, name in enumerate(A17_NAMES):
        alone = service(name, 170 + 2 * index, both(80), namespace="alone")
        beside = service(name, 171 + 2 * index, both(80))
        objects += [alone, beside, *slices(name, entry(world.pod("pod-b1")), suffix="-good")]
        for family in FAMILIES:
            objects.append(_partial(name, world, family, "-bad"))
            lonely = _partial(name, world, family, "-bad")
            lonely["metadata"]["namespace"] = "alone"
            objects.append(lonely)
    agent.apply(a17=objects)


@pytest.mark.parametrize("name", A17_NAMES)
@pytest.mark.usefixtures("partial_slices")
def test_a17_partial_slices_contribute_nothing_and_harm_nobody(world: World, name: str) -> None:
    """kubernetes/kubernetes#129886, zalando/skipper#3151, kubeedge/kubeedge#7003: absent fields crashed consumers.

    A slice that lacks ports, a number, endpoints, addresses or its label adds nothing; other slices go on.
    """
    index = A17_NAMES.index(name)
    assert fate(world.client, cluster_ip(170 + 2 * index)) == "rejected"
    assert shared_by(world.client, cluster_ip(171 + 2 * index)) == {"pod-b1 as node"}


def test_a17_port_without_a_name_is_the_unnamed_port(world: World, agent: Agent) -> None:
    """traefik/traefik#13481: a null name is the empty name."""
    unnamed = {"port": 80, "protocol": "TCP"}
    shape = service("unnamed", 17, [unnamed])
    for name in ({}, {"name": None}, {"name": ""}):
        ports = [{"port": TARGET, "protocol": "TCP", **name}]
        found = [
            endpoint_slice("unnamed", family, [endpoint(world.pod("pod-b1"), family)], ports) for family in FAMILIES
        ]
        agent.apply(a17unnamed=[shape, *found])
        assert fate(world.client, cluster_ip(17), protocols=["TCP"]) == "pod-b1 as node"


def test_a17_first_address_counts_and_the_node_may_be_unknown(world: World, agent: Agent) -> None:
    """kubernetes/kube-state-metrics#3063: of several addresses the first counts; nodeName may be absent."""
    shape = service("several", 67, both(80))

    def entries(family: Family) -> list[Manifest]:
        addresses = [world.pod(name).address(family) for name in ("pod-b2", "pod-a3")]
        return [{"addresses": addresses}]

    agent.apply(a17several=[shape, *slices("several", entries)])
    assert shared_by(world.client, cluster_ip(67)) == {"pod-b2 as node"}


ZONE = "topology.kubernetes.io/zone"
ALL = {"pod-a1 as node", "pod-a2 as node", "pod-b1 as node"}
HERE = {"pod-a1 as node", "pod-a2 as node"}


def _in_zone(agent: Agent, world: World, zone: str) -> None:
    """Put node-a into a zone; the empty one: without the label."""
    labels = {ZONE: zone} if zone else {}
    kept = [one for one in cluster(world) if one["metadata"]["name"] != "node-a"]
    agent.apply(cluster=[node_manifest(world.node("node-a"), **labels), *kept])


@pytest.fixture
def zones(world: World, agent: Agent) -> Iterator[None]:
    yield
    agent.apply(cluster=cluster(world))


def _hinted(world: World, kind: str, *, without: str = "") -> list[Manifest]:
    """Three endpoints that are meant for zones a, a and b, or for nodes node-a, node-a and node-b."""
    meant = {"pod-a1": "a", "pod-a2": "a", "pod-b1": "b"}
    shape = service(f"hinted-{kind.lower()}", 29 if kind == "forZones" else 79, both(80))
    prefix = "" if kind == "forZones" else "node-"

    def entries(family: Family) -> list[Manifest]:
        return [
            endpoint(world.pod(name), family, **({} if name == without else {"hints": {kind: [{"name": prefix + to}]}}))
            for name, to in meant.items()
        ]

    return [shape, *slices(shape["metadata"]["name"], entries)]


@pytest.mark.usefixtures("zones")
def test_a29_zone_hints_are_used_when_complete_and_for_this_zone(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#101525, #103888: hints were ignored without a word.

    They count if every usable endpoint has them and one is for this node's zone; else all endpoints share, and the log
    says why, once. A label that comes late counts.
    """
    to = cluster_ip(29)
    _in_zone(agent, world, "a")
    agent.apply(a29=_hinted(world, "forZones"))
    assert shared_by(world.client, to) == HERE
    assert agent.logged("topology hints ignored", "hinted-forzones") == []

    agent.apply(a29=_hinted(world, "forZones", without="pod-b1"))
    assert shared_by(world.client, to) == ALL
    first = agent.wait_logged("topology hints ignored", "hinted-forzones", count=2)
    assert len([line for line in first if ":p80'" in line and "IPv4" in line]) == 1

    agent.apply(a29=_hinted(world, "forZones"))
    assert shared_by(world.client, to) == HERE
    _in_zone(agent, world, "c")
    assert shared_by(world.client, to) == ALL
    _in_zone(agent, world, "")
    assert shared_by(world.client, to) == ALL
    reasons = {line.partition("reason=")[2].strip() for line in agent.logged("topology hints ignored", "hinted-forz")}
    assert len(reasons) == 3, reasons  # one endpoint lacks hints, none is for zone c, the zone is not known
    _in_zone(agent, world, "a")
    assert shared_by(world.client, to) == HERE


@pytest.mark.usefixtures("zones")
def test_a29_node_hints_are_used_when_complete_and_for_this_node(world: World, agent: Agent) -> None:
    """kubernetes/website#27032: the same for hints that name nodes."""
    to = cluster_ip(79)
    agent.apply(a29nodes=_hinted(world, "forNodes"))
    assert shared_by(world.client, to) == HERE
    agent.apply(a29nodes=_hinted(world, "forNodes", without="pod-b1"))
    assert shared_by(world.client, to) == ALL
    agent.apply(a29nodes=_hinted(world, "forNodes"))
    assert shared_by(world.client, to) == HERE


def test_a39_objects_that_others_may_hold_are_never_changed(namespace: Namespace) -> None:
    """kubernetes/kubernetes#86092: a proxy sorted the port list of a cached object in place.

    Neither what was parsed nor what was decoded is different after it has been planned, rendered and applied.
    """
    del namespace  # the thread is in it
    ports = [{"name": name, "port": port, "protocol": "TCP"} for name, port in (("z", 90), ("a", 80), ("m", 85))]
    shape = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "unsorted", "namespace": "ns"},
        "spec": {
            "clusterIP": "10.096.0.39",
            "ports": ports,
            "externalIPs": ["198.51.100.9", "2001:db8::9", "198.51.100.9"],
            "sessionAffinity": "ClientIP",
        },
    }
    found = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "x", "namespace": "ns", "labels": {"kubernetes.io/service-name": "unsorted"}},
        "addressType": "IPv4",
        "ports": [{**one, "port": 8000 + one["port"]} for one in ports],
        "endpoints": [
            {"addresses": [address]} for address in ("10.244.0.9", "10.244.0.10", "10.244.0.9", "10.244.00.8")
        ],
    }
    raw_before = copy.deepcopy([shape, found])
    changes = []
    for raw in (shape, found):
        decoded = decode(raw, "test")
        assert decoded.key is not None
        assert decoded.object is not None
        changes.append(Change(decoded.key, decoded.object))
    before = [msgspec.json.encode(change.object) for change in changes]
    for family in ProxyFamily:
        table = Table(known_node(), *changes, family=family)
        table.sync()
        table.sync(*changes)
    assert [shape, found] == raw_before
    assert [msgspec.json.encode(change.object) for change in changes] == before
