"""The node: addresses, families, local detection, NodePort addresses."""

from typing import Any

import msgspec
import pytest

from nodeproxy.kube.addresses import Family
from nodeproxy.kube.objects import Labels, Node, NodeAddress, NodeSpec, NodeStatus, ObjectMeta
from nodeproxy.model.node import (
    LocalDetector,
    NodePortAddresses,
    NodeView,
    UnsupportedFamilyError,
    local_detector,
    node_port_addresses,
    node_port_warnings,
    node_view,
    select_node_port_addresses,
    served_families,
)
from nodeproxy.model.settings import ProxySettings

V4, V6 = Family.IPV4, Family.IPV6


def a_node(*addresses: str, zone: str | None = None, **spec: Any) -> Node:
    pairs = [text.split("=") for text in addresses]
    return Node(
        metadata=ObjectMeta(name="n1", labels=Labels(zone=zone)),
        spec=NodeSpec(**spec),
        status=NodeStatus(addresses=tuple(NodeAddress(type=kind, address=address) for kind, address in pairs)),
    )


@pytest.mark.parametrize(
    ("addresses", "bind", "expected", "primary"),
    [
        (["InternalIP=10.0.0.1"], "", {V4: "10.0.0.1"}, V4),
        (["InternalIP=fd00::1"], "", {V6: "fd00::1"}, V6),
        (["InternalIP=10.0.0.1", "InternalIP=10.0.0.2"], "", {V4: "10.0.0.1"}, V4),
        (["InternalIP=10.0.0.1", "InternalIP=fd00::1"], "", {V4: "10.0.0.1", V6: "fd00::1"}, V4),
        (["InternalIP=fd00::1", "InternalIP=10.0.0.1"], "", {V4: "10.0.0.1", V6: "fd00::1"}, V6),
        (["ExternalIP=192.0.2.1", "InternalIP=10.0.0.1"], "", {V4: "10.0.0.1"}, V4),
        (["ExternalIP=192.0.2.1", "InternalIP=fd00::1"], "", {V4: "192.0.2.1", V6: "fd00::1"}, V6),
        (["ExternalIP=192.0.2.1"], "", {V4: "192.0.2.1"}, V4),
        (["Hostname=n1", "InternalDNS=10.0.0.9"], "", {}, V4),
        (["InternalIP=n1.example", "InternalIP=10.0.0.1"], "", {V4: "10.0.0.1"}, V4),
        (["InternalIP=010.0.0.01"], "", {V4: "10.0.0.1"}, V4),
        # A specific bind address stands for the node's.
        (["InternalIP=10.0.0.1"], "10.9.9.9", {V4: "10.9.9.9"}, V4),
        (["InternalIP=10.0.0.1"], "fd00::9", {V4: "10.0.0.1", V6: "fd00::9"}, V6),
        (["InternalIP=fd00::1", "InternalIP=10.0.0.1"], "10.9.9.9", {V4: "10.9.9.9", V6: "fd00::1"}, V4),
        (["InternalIP=10.0.0.1"], "::", {V4: "10.0.0.1"}, V4),
        (["InternalIP=fd00::1"], "0.0.0.0", {V6: "fd00::1"}, V6),  # noqa: S104 - told apart, not bound to
        ([], "10.9.9.9", {V4: "10.9.9.9"}, V4),
    ],
)
def test_node_addresses_and_the_primary_family(
    addresses: list[str], bind: str, expected: dict[Family, str], primary: Family
) -> None:
    view = node_view(a_node(*addresses), "n1", bind)
    assert view.addresses == expected
    assert view.primary is primary


def test_zone_and_pod_cidrs_come_from_the_node() -> None:
    view = node_view(a_node(zone="a", pod_cidr="10.1.0.0/24", pod_cidrs=("10.1.0.0/24", "fd01::/64")), "n1")
    assert (view.zone, view.pod_cidrs) == ("a", ("10.1.0.0/24", "fd01::/64"))


def test_a_single_pod_cidr_counts_where_the_list_is_missing() -> None:
    for missing in (None, ()):
        assert node_view(a_node(pod_cidr="10.1.0.0/24", pod_cidrs=missing), "n1").pod_cidrs == ("10.1.0.0/24",)
    assert node_view(a_node(), "n1").pod_cidrs == ()


@pytest.mark.parametrize(
    "node",
    [
        None,
        Node(metadata=ObjectMeta(name="n1")),
        Node(metadata=ObjectMeta(name="n1", labels=Labels()), spec=NodeSpec(), status=NodeStatus()),
    ],
)
def test_a_node_that_is_not_known_or_empty_has_a_name_only(node: Node | None) -> None:
    assert node_view(node, "n1") == NodeView("n1")
    assert node_view(node, "n1", "fd00::9") == NodeView("n1", addresses={V6: "fd00::9"}, primary=V6)


def test_the_name_is_kept_as_given() -> None:
    assert node_view(a_node(), "N1.example").name == "N1.example"


def test_the_node_is_not_changed() -> None:
    node = a_node("ExternalIP=192.0.2.1", "InternalIP=10.0.0.1", pod_cidrs=("10.1.0.0/24",))
    before = msgspec.json.encode(node)
    node_view(node, "n1", "10.9.9.9")
    assert msgspec.json.encode(node) == before


@pytest.mark.parametrize(
    ("settings", "v4", "v6"),
    [
        (ProxySettings(), None, None),
        (ProxySettings(cluster_cidrs=("10.0.0.0/8",)), LocalDetector("cidr", "10.0.0.0/8"), None),
        (
            ProxySettings(cluster_cidrs=("fd00::/48", "10.0.0.0/8")),
            LocalDetector("cidr", "10.0.0.0/8"),
            LocalDetector("cidr", "fd00::/48"),
        ),
        (
            ProxySettings(detect_local_mode="NodeCIDR", cluster_cidrs=("10.0.0.0/8",)),
            LocalDetector("cidr", "10.1.0.0/24"),
            LocalDetector("cidr", "fd01::/64"),
        ),
        (
            ProxySettings(detect_local_mode="BridgeInterface", bridge_interface="cni0"),
            LocalDetector("interface", "cni0"),
            LocalDetector("interface", "cni0"),
        ),
        (ProxySettings(detect_local_mode="BridgeInterface"), None, None),
        (
            ProxySettings(detect_local_mode="InterfaceNamePrefix", interface_name_prefix="veth"),
            LocalDetector("interface-prefix", "veth"),
            LocalDetector("interface-prefix", "veth"),
        ),
        (ProxySettings(detect_local_mode="InterfaceNamePrefix"), None, None),
    ],
)
def test_local_traffic_is_told_by_the_chosen_mode(
    settings: ProxySettings, v4: LocalDetector | None, v6: LocalDetector | None
) -> None:
    node = NodeView("n1", pod_cidrs=("10.1.0.0/24", "10.2.0.0/24", "fd01::/64"))
    assert local_detector(settings, node, V4) == v4
    assert local_detector(settings, node, V6) == v6


def test_without_pod_cidrs_the_node_cidr_mode_cannot_tell() -> None:
    settings = ProxySettings(detect_local_mode="NodeCIDR", cluster_cidrs=("10.0.0.0/8",))
    assert local_detector(settings, NodeView("n1"), V4) is None


DUAL = NodeView("n1", addresses={V4: "10.0.0.1", V6: "fd00::1"})
SINGLE = NodeView("n1", addresses={V4: "10.0.0.1"})
NOWHERE = NodeView("n1")
EVERYWHERE = NodePortAddresses(match_all=True)


def within(*cidrs: str) -> NodePortAddresses:
    return NodePortAddresses(match_all=False, cidrs=cidrs)


@pytest.mark.parametrize(
    ("entries", "node", "v4", "v6"),
    [
        ((), DUAL, within("10.0.0.1/32"), within("fd00::1/128")),
        (("primary",), DUAL, within("10.0.0.1/32"), within("fd00::1/128")),
        (("primary",), SINGLE, within("10.0.0.1/32"), within()),
        (("primary",), NOWHERE, within(), within()),
        (("primary",), NodeView("n1", addresses={V4: "127.0.0.1", V6: "::1"}), within(), within()),
        (("all",), DUAL, EVERYWHERE, EVERYWHERE),
        (("localhost",), DUAL, within("127.0.0.0/8"), within("::1/128")),
        (("10.0.0.0/8",), DUAL, within("10.0.0.0/8"), within()),
        (("fd00::/64",), DUAL, within(), within("fd00::/64")),
        (("0.0.0.0/0",), DUAL, EVERYWHERE, within()),
        (("::/0",), DUAL, within(), EVERYWHERE),
        (("10.0.0.0/8", "0.0.0.0/0", "fd00::/64"), DUAL, EVERYWHERE, within("fd00::/64")),
        (("::1/128", "127.0.0.1/32"), DUAL, within("127.0.0.1/32"), within("::1/128")),
        (
            ("primary", "localhost", "192.0.2.0/24", "192.0.2.0/24"),
            DUAL,
            within("10.0.0.1/32", "127.0.0.0/8", "192.0.2.0/24"),
            within("fd00::1/128", "::1/128"),
        ),
        (("primary", "all"), DUAL, EVERYWHERE, EVERYWHERE),
        (("primary", "10.0.0.1/32"), DUAL, within("10.0.0.1/32"), within("fd00::1/128")),
    ],
)
def test_node_port_addresses_are_split_by_family_and_nothing_means_none(
    entries: tuple[str, ...], node: NodeView, v4: NodePortAddresses, v6: NodePortAddresses
) -> None:
    settings = ProxySettings(node_port_addresses=entries)
    assert node_port_addresses(settings, node, V4) == v4
    assert node_port_addresses(settings, node, V6) == v6


DUAL_CLUSTER = ("10.0.0.0/8", "fd00::/48")


@pytest.mark.parametrize(
    ("entries", "node", "cluster_cidrs", "words"),
    [
        ((), DUAL, (), []),
        ((), SINGLE, (), []),
        (("all",), DUAL, (), []),
        (("localhost",), DUAL, (), []),
        (("10.0.0.0/8",), SINGLE, (), []),
        (("10.0.0.0/8",), DUAL, (), ["no IPv6 address"]),
        (("fd00::/64",), DUAL, (), ["no IPv4 address"]),
        (("::/0",), DUAL, (), ["no IPv4 address"]),
        (("10.0.0.0/8",), SINGLE, DUAL_CLUSTER, ["no IPv6 address"]),
        (("10.0.0.0/8",), NodeView("n1", pod_cidrs=DUAL_CLUSTER), (), ["no IPv6 address"]),
        ((), SINGLE, DUAL_CLUSTER, ["no IPv6 address"]),
        ((), NOWHERE, (), ["no address of Node n1 is known"]),
        (("primary",), NodeView(""), (), ["no address of this node is known"]),
        (("primary", "10.0.0.0/8"), NOWHERE, (), ["no address of Node n1 is known"]),
        (("10.0.0.0/8",), NOWHERE, (), []),
        ((), NodeView("n1", addresses={V4: "127.0.0.1"}), (), ["no address of Node n1 is known"]),
        ((), NOWHERE, DUAL_CLUSTER, ["no address of Node n1 is known", "no IPv4 address", "no IPv6 address"]),
    ],
)
def test_an_administrator_is_warned_of_a_family_left_out_and_of_an_unknown_primary(
    entries: tuple[str, ...], node: NodeView, cluster_cidrs: tuple[str, ...], words: list[str]
) -> None:
    settings = ProxySettings(node_port_addresses=entries, cluster_cidrs=cluster_cidrs)
    warnings = node_port_warnings(settings, node)
    assert len(warnings) == len(words)
    for warning, part in zip(warnings, words, strict=True):
        assert part in warning
        assert "nodePortAddresses" in warning
        assert warning.endswith(".")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (within("10.0.0.0/8"), ("10.0.0.1", "10.200.0.1")),
        (within("10.0.0.1/32", "10.0.0.0/24"), ("10.0.0.1",)),
        (within("10.0.0.9/32"), ()),
        (within("127.0.0.0/8"), ()),
        (within("::1/128"), ()),
        (within("fd00::/64", "::1/128"), ("fd00::1",)),
        (within(), ()),
        (EVERYWHERE, ()),
    ],
)
def test_addresses_on_interfaces_are_selected_sorted_once_and_without_loopback(
    wanted: NodePortAddresses, expected: tuple[str, ...]
) -> None:
    present = ["fe80::1", "10.200.0.1", "127.0.0.1", "::1", "10.0.0.1", "fd00::1", "10.0.0.1", "192.0.2.1"]
    assert select_node_port_addresses(wanted, present) == expected
    assert select_node_port_addresses(wanted, iter(reversed(present))) == expected


def test_an_address_that_comes_and_goes_is_followed() -> None:
    wanted = within("10.0.0.0/8")
    assert select_node_port_addresses(wanted, ["10.0.0.1"]) == ("10.0.0.1",)
    assert select_node_port_addresses(wanted, ["10.0.0.1", "10.0.0.2"]) == ("10.0.0.1", "10.0.0.2")
    assert select_node_port_addresses(wanted, []) == ()


def test_both_families_are_served_primary_first_unless_ipv6_is_missing() -> None:
    assert served_families(V4, ipv6_usable=True) == (V4, V6)
    assert served_families(V6, ipv6_usable=True) == (V6, V4)
    assert served_families(V4, ipv6_usable=False) == (V4,)
    with pytest.raises(UnsupportedFamilyError, match='no support for primary IP family "IPv6"'):
        served_families(V6, ipv6_usable=False)
