"""Traffic policy and topology: which endpoints a service port uses from one node."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeproxy.kube.addresses import Family
from nodeproxy.model.endpoints import Endpoint
from nodeproxy.model.node import NodeView
from nodeproxy.model.service import ServicePort, ServicePortName
from nodeproxy.model.topology import Topology, topology_mode
from nodeproxy.model.traffic import categorize

HERE = NodeView("n1", zone="a")


def port(*, internal: bool = False, external: bool = False, node_port: int = 0) -> ServicePort:
    return ServicePort(
        name=ServicePortName("shop", "web", "http", "TCP"),
        family=Family.IPV4,
        created="",
        cluster_ip="10.96.0.1",
        port=80,
        node_port=node_port,
        internal_policy_local=internal,
        external_policy_local=external,
    )


PLAIN = port()
INTERNAL_LOCAL = port(internal=True)
EXTERNAL_LOCAL = port(external=True, node_port=30080)
BOTH_LOCAL = port(internal=True, external=True, node_port=30080)
INTERNAL_LOCAL_EXPOSED = port(internal=True, node_port=30080)
EXTERNAL_LOCAL_UNEXPOSED = port(external=True)


def ep(last: int, node: str = "n2", state: str = "ready", zones: str = "", nodes: str = "") -> Endpoint:
    ready, serving, terminating = {
        "ready": (True, True, False),
        "leaving": (False, True, True),
        "gone": (False, False, True),
        "starting": (False, True, False),
        "refusing": (False, False, False),
    }[state]
    return Endpoint(
        f"10.0.0.{last}",
        80,
        node,
        ready,
        serving,
        terminating,
        frozenset(zones.split()),
        frozenset(nodes.split()),
    )


def numbers(endpoints: tuple[Endpoint, ...]) -> list[int]:
    return [int(e.address.rpartition(".")[2]) for e in endpoints]


@pytest.mark.parametrize(
    ("endpoints", "service_port", "cluster", "local", "reachable", "usable"),
    [
        # Cluster policy: all that is ready, wherever it is.
        ([ep(1, "n1"), ep(2)], PLAIN, [1, 2], [], [1, 2], True),
        ([], PLAIN, [], [], [], False),
        ([ep(1, state="gone"), ep(2, state="starting"), ep(3, state="refusing")], PLAIN, [], [], [], False),
        # What still serves steps in only when nothing is ready.
        ([ep(1, state="leaving"), ep(2)], PLAIN, [2], [], [2], True),
        ([ep(1, state="leaving"), ep(2, state="gone"), ep(3, state="starting")], PLAIN, [1], [], [1], True),
        # Internal Local without other frontends: nothing but local endpoints.
        ([ep(1, "n1"), ep(2)], INTERNAL_LOCAL, [], [1], [1], True),
        ([ep(2)], INTERNAL_LOCAL, [], [], [], True),
        ([ep(2, state="leaving")], INTERNAL_LOCAL, [], [], [], True),
        ([ep(1, "n1", "gone"), ep(2, state="starting")], INTERNAL_LOCAL, [], [], [], False),
        ([ep(1, "n1", "leaving"), ep(2)], INTERNAL_LOCAL, [], [1], [1], True),
        ([ep(1, "n1", "leaving"), ep(2, "n1")], INTERNAL_LOCAL, [], [2], [2], True),
        # External Local: both sets, since traffic from within the cluster takes the short cut.
        ([ep(1, "n1"), ep(2)], EXTERNAL_LOCAL, [1, 2], [1], [1, 2], True),
        ([ep(2)], EXTERNAL_LOCAL, [2], [], [2], True),
        ([ep(1, "n1", "leaving"), ep(2)], EXTERNAL_LOCAL, [2], [1], [1, 2], True),
        ([ep(1, "n1", "leaving")], EXTERNAL_LOCAL, [1], [1], [1], True),
        ([ep(1, "n1"), ep(2)], BOTH_LOCAL, [1, 2], [1], [1, 2], True),
        ([ep(1, "n1"), ep(2)], INTERNAL_LOCAL_EXPOSED, [1, 2], [1], [1, 2], True),
        # External Local with nothing exposed asks for no local set.
        ([ep(1, "n1"), ep(2)], EXTERNAL_LOCAL_UNEXPOSED, [1, 2], [], [1, 2], True),
        # Hints limit the cluster set, not the local one.
        ([ep(1, "n1", zones="b"), ep(2, zones="a")], EXTERNAL_LOCAL, [2], [1], [1, 2], True),
        ([ep(1, "n1", zones="b"), ep(2, zones="a")], INTERNAL_LOCAL, [], [1], [1], True),
        ([ep(1, "n1", zones="b"), ep(2, zones="a")], PLAIN, [2], [], [2], True),
        # Hints of what is not ready neither count nor bind.
        ([ep(1, zones="a"), ep(2, zones="b"), ep(3, state="starting")], PLAIN, [1], [], [1], True),
        ([ep(1, state="leaving", zones="b"), ep(2, state="leaving", zones="a")], PLAIN, [1, 2], [], [1, 2], True),
    ],
)
def test_traffic_policy(
    endpoints: list[Endpoint],
    service_port: ServicePort,
    cluster: list[int],
    local: list[int],
    reachable: list[int],
    usable: bool,
) -> None:
    sets = categorize(endpoints, service_port, HERE)
    assert numbers(sets.cluster) == cluster
    assert numbers(sets.local) == local
    assert numbers(sets.reachable) == reachable
    assert sets.any_usable is usable


@pytest.mark.parametrize("name", ["", "N1", "n1.example", "n"])
def test_a_node_of_another_name_has_no_local_endpoints(name: str) -> None:
    endpoints = [ep(1, "n1"), ep(2, "")]
    assert categorize(endpoints, INTERNAL_LOCAL, NodeView(name)).local == ()


NO_NODE_HINT = "some ready endpoints have no node hint"
NO_ZONE_HINT = "some ready endpoints have no zone hint"


@pytest.mark.parametrize(
    ("endpoints", "node", "mode", "ignored"),
    [
        ([], HERE, "", ""),
        ([ep(1), ep(2)], HERE, "", ""),
        ([ep(1, state="leaving", zones="a")], HERE, "", ""),
        # zones
        ([ep(1, zones="a"), ep(2, zones="a"), ep(3, zones="b")], HERE, "PreferSameZone", ""),
        ([ep(1, zones="a b")], HERE, "PreferSameZone", ""),
        ([ep(1, zones="a"), ep(2)], HERE, "", NO_ZONE_HINT),
        ([ep(1, zones="b"), ep(2, zones="c")], HERE, "", "no ready endpoint has a hint for this node's zone"),
        (
            [ep(1, zones="a")],
            NodeView("n1"),
            "",
            "this node's zone is not known (label topology.kubernetes.io/zone)",
        ),
        # nodes
        ([ep(1, nodes="n1"), ep(2, nodes="n2")], HERE, "PreferSameNode", ""),
        ([ep(1, nodes="n1", zones="b"), ep(2, nodes="n2", zones="a")], HERE, "PreferSameNode", ""),
        ([ep(1, nodes="n1"), ep(2)], HERE, "", NO_NODE_HINT),
        ([ep(1, nodes="n2")], HERE, "", "no ready endpoint has a hint for this node"),
        ([ep(1, nodes="n1")], NodeView("", zone="a"), "", "this node's name is not known"),
        ([ep(1, nodes="N1")], HERE, "", "no ready endpoint has a hint for this node"),
        # from nodes to zones to all
        ([ep(1, nodes="n2", zones="a"), ep(2, nodes="n3", zones="b")], HERE, "PreferSameZone", ""),
        ([ep(1, nodes="n1", zones="a"), ep(2, zones="b")], HERE, "PreferSameZone", NO_NODE_HINT),
        ([ep(1, nodes="n1", zones="a"), ep(2)], HERE, "", f"{NO_NODE_HINT}; {NO_ZONE_HINT}"),
        (
            [ep(1, nodes="n2", zones="b")],
            HERE,
            "",
            "no ready endpoint has a hint for this node's zone",
        ),
    ],
)
def test_hints_are_used_only_when_complete_and_for_this_node(
    endpoints: list[Endpoint], node: NodeView, mode: Any, ignored: str
) -> None:
    assert topology_mode(endpoints, node) == Topology(mode, ignored)
    assert categorize(endpoints, PLAIN, node).topology == Topology(mode, ignored)


def test_a_zone_that_becomes_known_takes_effect() -> None:
    endpoints = [ep(1, zones="a"), ep(2, zones="a"), ep(3, zones="b")]
    assert [len(categorize(endpoints, PLAIN, NodeView("n1", zone)).cluster) for zone in ("", "a", "b", "c")] == [
        3,
        2,
        1,
        3,
    ]


def test_same_node_hints_pick_this_nodes_endpoints() -> None:
    endpoints = [ep(1, nodes="n1"), ep(2, nodes="n2"), ep(3, nodes="n2 n1")]
    assert numbers(categorize(endpoints, PLAIN, HERE).cluster) == [1, 3]


ENDPOINTS = st.lists(
    st.builds(
        ep,
        st.integers(1, 9),
        st.sampled_from(["", "n1", "n2"]),
        st.sampled_from(["ready", "leaving", "gone", "starting", "refusing"]),
        st.sampled_from(["", "a", "b", "a b"]),
        st.sampled_from(["", "n1", "n2"]),
    ),
    unique_by=lambda e: e.sort_key,
    max_size=6,
).map(lambda endpoints: sorted(endpoints, key=lambda e: e.sort_key))


@given(ENDPOINTS)
def test_sets_are_sorted_consistent_and_never_hold_what_is_unusable(endpoints: list[Endpoint]) -> None:
    before = list(endpoints)
    for internal, external, node_port in itertools.product((False, True), (False, True), (0, 30080)):
        service_port = port(internal=internal, external=external, node_port=node_port)
        sets = categorize(endpoints, service_port, HERE)
        assert set(sets.reachable) == set(sets.cluster) | set(sets.local)
        for chosen in (sets.cluster, sets.local, sets.reachable):
            assert list(chosen) == [e for e in endpoints if e in chosen]
            assert all(e.ready or (e.serving and e.terminating) for e in chosen)
        assert all(e.node_name == "n1" for e in sets.local)
        if service_port.uses_cluster_endpoints:
            assert bool(sets.cluster) is sets.any_usable
        else:
            assert sets.cluster == ()
    assert endpoints == before
