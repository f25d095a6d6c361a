"""Advice: each thing that looks wrong is one sentence that says what follows from it, and nothing else is."""

from typing import Any

import pytest

from nodeproxy.kube.addresses import Family
from nodeproxy.model.node import NodeView
from nodeproxy.model.settings import DetectLocalMode, ProxySettings
from nodeproxy.sync.advice import Situation, advice

V4, V6 = Family.IPV4, Family.IPV6
CLUSTER = ("10.244.0.0/16", "fd00:244::/64")
ADDRESSES = {V4: "192.0.2.1", V6: "2001:db8::1"}


def settings(**values: Any) -> ProxySettings:
    return ProxySettings(**{"cluster_cidrs": CLUSTER, **values})


def node(**values: Any) -> NodeView:
    return NodeView("node-a", **{"addresses": ADDRESSES, "pod_cidrs": ("10.244.1.0/24",), **values})


def sentences(**values: Any) -> list[str]:
    """What is said about a node at which all is well, but for what ``values`` say."""
    well: dict[str, Any] = {
        "settings": settings(),
        "node": node(),
        "node_known": True,
        "families": (V4, V6),
        "present": ("127.0.0.1", "192.0.2.1", "::1", "2001:db8::1"),
        "services": 1,
    }
    return list(advice(Situation(**{**well, **values})))


def test_nothing_is_said_where_all_is_well() -> None:
    assert sentences() == []


def test_no_service_at_all_is_said() -> None:
    """An empty folder, or a filter that lets nothing pass, takes every rule away."""
    assert sentences(services=0) == [
        "there is no Service at all: every rule for Services has been, or will be, removed"
    ]


def test_unknown_node_is_said_with_the_flag_that_names_it() -> None:
    (sentence,) = sentences(node_known=False)
    assert sentence.startswith("there is no Node node-a: ")
    assert "--hostname-override" in sentence


# --- NodePort addresses ----------------------------------------------------------------------------------------------


def test_family_none_of_whose_node_port_addresses_is_on_an_interface_is_said() -> None:
    (sentence,) = sentences(present=("127.0.0.1", "192.0.2.2", "2001:db8::1"))
    assert sentence == (
        "no interface of this node has an IPv4 address that accepts NodePort traffic (192.0.2.1/32, loopback left"
        " out): NodePorts are not served over IPv4"
    )
    (sentence,) = sentences(present=("192.0.2.1", "2001:db8::2"))
    assert "2001:db8::1/128" in sentence
    assert sentence.endswith("NodePorts are not served over IPv6")
    assert len(sentences(present=())) == 2


def test_family_that_is_not_served_gets_no_sentence() -> None:
    assert sentences(families=(V4,), present=("192.0.2.1",)) == []


def test_localhost_alone_is_said_though_the_interface_has_it() -> None:
    """Packets to loopback addresses can't be sent on to a pod, so no NodePort is served there."""
    found = sentences(settings=settings(node_port_addresses=("localhost",)))
    assert [sentence.split("(")[1].split(",")[0] for sentence in found] == ["127.0.0.0/8", "::1/128"]
    assert all("loopback left out" in sentence for sentence in found)


@pytest.mark.parametrize(
    "wanted", [("all",), ("localhost", "primary"), ("0.0.0.0/0", "::/0"), ("192.0.2.0/24", "2001:db8::/32")]
)
def test_addresses_of_which_one_is_on_an_interface_are_not_said(wanted: tuple[str, ...]) -> None:
    assert sentences(settings=settings(node_port_addresses=wanted)) == []


def test_all_is_not_said_even_while_no_interface_has_an_address() -> None:
    """The kernel decides packet by packet then."""
    assert sentences(settings=settings(node_port_addresses=("all",)), present=()) == []


def test_list_without_an_address_of_one_family_is_said_once_for_that_family() -> None:
    """The sentence that the list holds none of it says it all; that no interface has one would add nothing."""
    (sentence,) = sentences(settings=settings(node_port_addresses=("192.0.2.0/24",)))
    assert "holds no IPv6 address" in sentence


def test_primary_without_a_known_address_is_said() -> None:
    found = sentences(settings=settings(cluster_cidrs=("10.244.0.0/16",)), node=node(addresses={}))
    assert len(found) == 1
    assert '"primary" stands for nothing' in found[0]


# --- local traffic ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "values", "missing"),
    [
        ("ClusterCIDR", {"cluster_cidrs": ()}, "no {} cluster CIDR is given (--cluster-cidr)"),
        ("NodeCIDR", {}, "the Node states no {} pod CIDR"),
        ("BridgeInterface", {}, "no interface is named"),
        ("InterfaceNamePrefix", {}, "no interface is named"),
    ],
)
def test_mode_that_cannot_tell_local_pods_is_said_with_what_is_missing_and_what_follows(
    mode: DetectLocalMode, values: dict[str, Any], missing: str
) -> None:
    found = sentences(settings=settings(detect_local_mode=mode, **values), node=node(pod_cidrs=()))
    assert found == [
        f"{label} traffic of local pods can't be told, since {missing.format(label)}: traffic to ClusterIPs is not"
        " masqueraded, and pods are not short-circuited to all endpoints under externalTrafficPolicy Local"
        for label in ("IPv4", "IPv6")
    ]


@pytest.mark.parametrize(
    ("mode", "values", "missing"),
    [
        ("ClusterCIDR", {"cluster_cidrs": ("10.244.0.0/16",)}, "no IPv6 cluster CIDR is given (--cluster-cidr)"),
        ("NodeCIDR", {}, "the Node states no IPv6 pod CIDR"),
    ],
)
def test_dual_stack_node_whose_local_pods_can_be_told_in_one_family_only_gets_one_sentence(
    mode: DetectLocalMode, values: dict[str, Any], missing: str
) -> None:
    """The other family is the one that is not served as meant."""
    one = node(pod_cidrs=("10.244.1.0/24",))
    (sentence,) = sentences(settings=settings(detect_local_mode=mode, **values), node=one)
    assert sentence.startswith(f"IPv6 traffic of local pods can't be told, since {missing}: ")
    (sentence,) = sentences(settings=settings(cluster_cidrs=("fd00:244::/64",)))
    assert sentence.startswith("IPv4 traffic of local pods can't be told, since no IPv4 cluster CIDR is given")


def test_family_that_the_node_has_no_address_of_needs_no_way_to_tell_its_pods() -> None:
    """The table of a family is kept wherever the kernel has it; a single-stack cluster has no pods of the other."""
    single = node(addresses={V4: "192.0.2.1"})
    assert sentences(settings=settings(cluster_cidrs=("10.244.0.0/16",)), node=single, present=("192.0.2.1",)) == []


@pytest.mark.parametrize(
    ("mode", "values"),
    [
        ("ClusterCIDR", {}),
        ("NodeCIDR", {"cluster_cidrs": ()}),
        ("BridgeInterface", {"bridge_interface": "cni0", "cluster_cidrs": ()}),
        ("InterfaceNamePrefix", {"interface_name_prefix": "veth", "cluster_cidrs": ()}),
    ],
)
def test_mode_that_can_tell_local_pods_is_not_said(mode: DetectLocalMode, values: dict[str, Any]) -> None:
    both = node(pod_cidrs=("10.244.1.0/24", "fd00:244:1::/64"))
    assert sentences(settings=settings(detect_local_mode=mode, **values), node=both) == []


def test_pods_of_the_primary_family_must_be_told_even_while_its_address_is_unknown() -> None:
    six = node(addresses={V4: "192.0.2.1"}, primary=V6)
    found = sentences(settings=settings(cluster_cidrs=("10.244.0.0/16",), node_port_addresses=("all",)), node=six)
    assert len(found) == 1
    assert "no IPv6 cluster CIDR" in found[0]


def test_several_things_are_several_sentences() -> None:
    found = sentences(services=0, node_known=False, settings=settings(cluster_cidrs=()), present=())
    assert len(found) == 6
    assert len(set(found)) == 6
