"""The planner: changes of objects and surroundings become changes of rules, and only where something differs."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Change
from nodeproxy.model.service import ServicePortName
from nodeproxy.model.settings import ProxySettings
from nodeproxy.ruleset.rules import FirewallChain, ServiceRules

from .planning import Planning
from .support import endpoints, gone, node, service, service_cidr


def name(of: str) -> ServicePortName:
    return ServicePortName("ns", of, "", "TCP")


def keys(rules: ServiceRules | None, container: str = "service-ips") -> list[tuple[str | int, ...]]:
    assert rules is not None
    return [element.key for element in rules.elements if element.container == container]


def test_unchanged_input_changes_nothing() -> None:
    planning = Planning(service("web"), endpoints("web", [1, 2]))
    assert planning.update(service("web"), endpoints("web", [1, 2])) == {}
    assert planning.move(node()) is None


def test_endpoints_in_another_order_or_split_otherwise_change_nothing() -> None:
    planning = Planning(service("web"), endpoints("web", [1, 2, 3], name="s"))
    assert planning.update(endpoints("web", [3, 1], name="s"), endpoints("web", [2, 1], name="t")) == {}


def test_change_of_one_service_touches_no_other() -> None:
    planning = Planning(service("web"), endpoints("web", [1]), service("api", 11), endpoints("api", [2]))
    assert set(planning.update(endpoints("web", [1, 3]))) == {name("web")}


def test_deleted_service_is_gone_from_plans() -> None:
    planning = Planning(service("web"), endpoints("web", [1]))
    assert planning.update(gone("Service", "web")) == {name("web"): None}
    assert planning.planner.plans == {}
    assert planning.update(gone("Service", "web"), gone("EndpointSlice", "web-1")) == {}


def test_port_that_is_renamed_or_dropped_is_gone() -> None:
    both = [{"name": "a", "port": 80}, {"name": "b", "port": 81}]
    planning = Planning(service("web", ports=both))
    changed = planning.update(service("web", ports=[{"name": "b", "port": 81}, {"name": "c", "port": 80}]))
    assert {key.port_name: rules is None for key, rules in changed.items()} == {"a": True, "c": False}


def test_service_of_the_other_family_only_has_no_plan() -> None:
    planning = Planning(service("web", family=Family.IPV6))
    assert planning.planner.plans == {}


def test_type_is_followed_in_both_directions() -> None:
    """ExternalName has no rules though slices exist; they count as soon as it becomes ClusterIP (A27)."""
    external = {"type": "ExternalName", "clusterIP": None, "externalName": "example.org"}
    planning = Planning(service("web", **external), endpoints("web", [1]))
    assert planning.planner.plans == {}
    changed = planning.update(service("web"))
    assert keys(changed[name("web")]) == [("10.96.0.10", "tcp", 80)]
    assert planning.update(service("web", **external)) == {name("web"): None}


def test_node_port_goes_with_the_type() -> None:
    planning = Planning(service("web", type="NodePort", ports=[{"port": 80, "nodePort": 30080}]), endpoints("web", [1]))
    assert keys(planning.planner.plans[name("web")], "service-nodeports") == [("tcp", 30080)]
    changed = planning.update(service("web"))
    assert keys(changed[name("web")], "service-nodeports") == []


@pytest.mark.parametrize("value", ["other", ""])
def test_label_hands_a_service_to_another_proxy_and_back(value: str) -> None:
    planning = Planning(service("web"), endpoints("web", [1]))
    labelled = service("web", labels={"service.kubernetes.io/service-proxy-name": value})
    assert planning.update(labelled) == {name("web"): None}
    assert keys(planning.update(service("web"))[name("web")]) == [("10.96.0.10", "tcp", 80)]


# --- clashes ---------------------------------------------------------------------------------------------------------

SHARED = {"externalIPs": ["198.51.100.7"]}
SHARED_KEY = ("198.51.100.7", "tcp", 80)


def clashing() -> Planning:
    return Planning(
        service("young", 10, created="2024-02-02T00:00:00Z", **SHARED),
        service("old", 11, created="2024-01-01T00:00:00Z", **SHARED),
        endpoints("young", [1]),
        endpoints("old", [2]),
    )


def test_older_claimant_has_the_frontend() -> None:
    plans = clashing().planner.plans
    assert keys(plans[name("old")]) == [("10.96.0.11", "tcp", 80), SHARED_KEY]
    assert keys(plans[name("young")]) == [("10.96.0.10", "tcp", 80)]


@pytest.mark.parametrize(
    "leaving",
    [
        gone("Service", "old"),
        service("old", 11, created="2024-01-01T00:00:00Z"),
        service("old", 11, created="2024-03-03T00:00:00Z", **SHARED),
        service("old", 11, labels={"service.kubernetes.io/service-proxy-name": "x"}, **SHARED),
        service("old", 11, **SHARED, ports=[{"port": 81}]),
    ],
    ids=["deleted", "gives it up", "made anew", "handed over", "other port"],
)
def test_loser_takes_over_in_the_same_update_in_which_the_winner_leaves(leaving: Change) -> None:
    planning = clashing()
    assert [clash.winner.service for clash in planning.planner.clashes()] == ["old"]
    changed = planning.update(leaving)
    assert keys(changed[name("young")]) == [("10.96.0.10", "tcp", 80), SHARED_KEY]
    assert planning.planner.plans == planning.fresh().plans
    left = changed[name("old")]
    assert left is None or SHARED_KEY not in keys(left)


def test_an_older_newcomer_takes_the_frontend_in_the_same_update() -> None:
    planning = clashing()
    changed = planning.update(service("oldest", 12, created="2023-01-01T00:00:00Z", **SHARED))
    assert set(changed) == {name("oldest"), name("old")}
    assert keys(changed[name("old")]) == [("10.96.0.11", "tcp", 80)]


def test_takeover_uses_endpoints_that_came_while_it_had_lost() -> None:
    planning = clashing()
    planning.update(endpoints("young", [5, 6]))
    planning.update(gone("Service", "old"))
    assert planning.planner.plans == planning.fresh().plans


# --- surroundings ----------------------------------------------------------------------------------------------------


def test_zone_of_the_node_decides_which_hinted_endpoints_count() -> None:
    planning = Planning(
        service("web"),
        endpoints("web", [1], name="s", zones=["zone-a"]),
        endpoints("web", [2], name="t", zones=["zone-b"]),
    )
    both = planning.planner.plans[name("web")]
    changed = planning.move(node(zone="zone-b"))
    assert changed is not None
    assert set(changed) == {name("web")}
    assert [chain.targets for chain in changed[name("web")].balancing()] == [(("10.244.0.2", 8080),)]
    assert planning.move(node()) == {name("web"): both}


def test_node_address_may_use_a_vip_whose_source_ranges_hold_it() -> None:
    """A node that dials a VIP which is its own address comes from the VIP; so that is let in with the node."""
    planning = Planning(
        service("web", type="LoadBalancer", loadBalancerSourceRanges=["203.0.113.0/24"], vips=["198.51.100.9"]),
        endpoints("web", [1]),
    )
    assert _allowed(planning) == ("203.0.113.0/24",)
    changed = planning.move(node(addresses=["203.0.113.5"]))
    assert changed is not None
    assert set(changed) == {name("web")}
    assert _allowed(planning) == ("203.0.113.0/24", "198.51.100.9")


def _allowed(planning: Planning) -> tuple[str, ...]:
    (found,) = (c.allowed for c in planning.planner.plans[name("web")].chains if isinstance(c, FirewallChain))
    return found


def test_node_address_moves_node_ports() -> None:
    planning = Planning()
    assert planning.planner.base[1] == ("192.0.2.1",)
    planning.present = ("192.0.2.1", "203.0.113.5")
    planning.move(node(addresses=["203.0.113.5"]))
    assert planning.planner.base[1] == ("203.0.113.5",)


def test_new_interface_address_changes_the_base_and_no_service() -> None:
    planning = Planning(service("web"), proxy_settings=ProxySettings(node_port_addresses=("198.18.0.0/15",)))
    assert planning.planner.base[1] == ()
    planning.present = ("192.0.2.1", "198.18.3.4")
    assert planning.move() is None
    assert planning.planner.base[1] == ("198.18.3.4",)
    planning.present = ()
    assert planning.move() is None
    assert planning.planner.base[1] == ()


def test_pod_cidr_of_the_node_tells_local_pods_in_mode_node_cidr() -> None:
    planning = Planning(service("web"), proxy_settings=ProxySettings(detect_local_mode="NodeCIDR"))
    assert "!=" not in planning.chain("services")[0]
    planning.move(node(pod_cidrs=["10.9.0.0/24"]))
    assert planning.chain("services")[0] == "ip daddr @cluster-ips ip saddr != 10.9.0.0/24 mark set mark or 0x00004000"
    planning.move(node(pod_cidrs=["10.9.1.0/24"]))
    assert "10.9.1.0/24" in planning.chain("services")[0]


def test_service_cidrs_are_dropped_when_unallocated() -> None:
    planning = Planning(service("web"))
    assert len(planning.chain("cluster-ips-check")) == 1
    planning.move(service_cidr("10.96.0.0/12"), service_cidr("10.200.0.0/16", name="more"))
    assert planning.chain("cluster-ips-check")[1:] == ("ip daddr 10.200.0.0/16 drop", "ip daddr 10.96.0.0/12 drop")
    planning.move(gone("ServiceCIDR", "more", ""), gone("ServiceCIDR", "kubernetes", ""))
    assert len(planning.chain("cluster-ips-check")) == 1


def test_endpoint_is_local_by_the_name_of_the_node() -> None:
    planning = Planning(service("web", internalTrafficPolicy="Local"), endpoints("web", [1], node="node-b"))
    assert planning.planner.plans[name("web")].lacks_local_internal
    changed = planning.update(endpoints("web", [1]))
    assert changed[name("web")] is not None
    assert not changed[name("web")].lacks_local_internal


# --- any sequence ----------------------------------------------------------------------------------------------------

_NAMES = ("a", "b", "c", "d")
_hosts = st.lists(st.integers(1, 4), max_size=3, unique=True)


@st.composite
def _services(draw: st.DrawFn) -> Change:
    spec: dict[str, object] = {}
    kind = draw(st.sampled_from(("ClusterIP", "NodePort", "ExternalName", "Headless")))
    if kind == "Headless":
        spec["clusterIP"] = "None"
    else:
        spec["type"] = kind
    port: dict[str, object] = {"port": draw(st.sampled_from((80, 81)))}
    if kind == "NodePort":
        port["nodePort"] = draw(st.sampled_from((30000, 30001)))
        spec["externalTrafficPolicy"] = draw(st.sampled_from(("Cluster", "Local")))
    spec["ports"] = [port]
    spec["externalIPs"] = draw(st.sampled_from(([], ["198.51.100.1"], ["198.51.100.1", "198.51.100.2"])))
    spec["internalTrafficPolicy"] = draw(st.sampled_from(("Cluster", "Local")))
    labels = draw(st.sampled_from((None, None, None, {"service.kubernetes.io/service-proxy-name": "x"})))
    created = draw(st.sampled_from(("2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z")))
    return service(draw(st.sampled_from(_NAMES)), draw(st.integers(1, 3)), created=created, labels=labels, **spec)


_slices = st.builds(
    lambda of, hosts, number, where, zones, port_name: endpoints(
        of, hosts, name=number, node=where, zones=zones, port_name=port_name
    ),
    st.sampled_from((*_NAMES, None)),
    _hosts,
    st.sampled_from(("s1", "s2", "s3", "s4")),
    st.sampled_from(("node-a", "node-b")),
    st.sampled_from(((), ("zone-a",), ("zone-b",))),
    st.sampled_from(("", "", "other")),
)
_deletions = st.sampled_from(
    [gone("Service", of) for of in _NAMES] + [gone("EndpointSlice", f"s{i}") for i in (1, 2, 3, 4)]
)
_surroundings = st.one_of(
    st.builds(
        lambda zone, address: node(zone=zone, addresses=[address]),
        st.sampled_from(("", "zone-a", "zone-b")),
        st.sampled_from(("192.0.2.1", "203.0.113.5")),
    ),
    st.sampled_from([service_cidr("10.96.0.0/12"), service_cidr("10.0.0.0/8"), gone("ServiceCIDR", "kubernetes", "")]),
)
_batches = st.lists(
    st.one_of(
        st.tuples(st.just("update"), st.lists(st.one_of(_services(), _slices, _deletions), min_size=1, max_size=4)),
        st.tuples(st.just("move"), st.lists(_surroundings, min_size=1, max_size=2)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(_batches)
def test_any_sequence_of_changes_leads_where_a_fresh_start_would(batches: list[tuple[str, list[Change]]]) -> None:
    """And each step returns just what differs from before."""
    planning = Planning()
    for step, changes in batches:
        before = dict(planning.planner.plans)
        changed = planning.update(*changes) if step == "update" else planning.move(*changes) or {}
        after = planning.planner.plans
        assert changed == {
            key: after.get(key) for key in sorted({*before, *after}) if before.get(key) != after.get(key)
        }
        assert list(changed) == sorted(changed)
    fresh = planning.fresh()
    assert planning.planner.plans == fresh.plans
    assert planning.planner.base == fresh.base
    assert planning.planner.clashes() == fresh.clashes()
    assert planning.planner.unmatched == fresh.unmatched
