"""What a plan's chains do: choose, remember, guard; and which endpoints are hairpinned."""

import dataclasses

import pytest

from nodeproxy.ruleset.rules import (
    FIREWALL_IPS,
    HAIRPIN,
    NO_ENDPOINT_SERVICES,
    REJECT_CHAIN,
    AffinitySet,
    BalancingChain,
    EndpointChain,
    FirewallChain,
    StickyEndpoint,
    Target,
)
from unit.ruleset.build import NODE, chains, elements, ep, planned, port
from unit.ruleset.plan_shapes import (
    FIREWALL_CHAIN,
    LOCAL,
    LOCAL_CHAIN,
    REMOTE,
    SERVICE_CHAIN,
    VIP,
    VIP_KEY,
    full,
)

# --- slots -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "slots"), [(1, 0), (2, 2), (3, 3)])
def test_single_endpoint_needs_no_slot(count: int, slots: int) -> None:
    endpoints = [ep(f"10.180.0.{i + 1}") for i in range(count)]
    [plain] = planned(port(protocol="UDP"), *endpoints).balancing()
    assert (len(plain.slots), plain.slot_maps) == (slots, "endpoints-udp-")
    [sticky] = planned(port(affinity_seconds=5), *endpoints).balancing()
    assert (len(sticky.slots), sticky.slot_maps) == (slots, "endpoint-chains-")


# --- source ranges -----------------------------------------------------------------------------------------------


def test_source_ranges_guard_the_vips_and_nothing_else() -> None:
    rules = planned(full(source_ranges=("203.0.113.0/25",)), ep(LOCAL))
    assert elements(rules, FIREWALL_IPS) == {VIP_KEY: FIREWALL_CHAIN}
    assert chains(rules)[FIREWALL_CHAIN] == FirewallChain(FIREWALL_CHAIN, ("203.0.113.0/25",))


def test_vips_are_let_in_where_the_node_is() -> None:
    """A node that dials a VIP which is one of its own addresses has the VIP as its source."""
    shape = full(load_balancer_vips=(VIP, "1.2.3.5"), source_ranges=("203.0.113.0/25", "192.168.0.0/24"))
    inside = chains(planned(shape, ep(LOCAL)))[FIREWALL_CHAIN]
    assert inside.allowed == ("203.0.113.0/25", "192.168.0.0/24", VIP, "1.2.3.5")
    outside = chains(planned(shape, ep(LOCAL), node_address="192.168.1.2"))[FIREWALL_CHAIN]
    assert outside.allowed == ("203.0.113.0/25", "192.168.0.0/24")
    unknown = chains(planned(shape, ep(LOCAL), node_address=""))[FIREWALL_CHAIN]
    assert unknown.allowed == ("203.0.113.0/25", "192.168.0.0/24")


def test_every_vip_has_its_element() -> None:
    rules = planned(full(load_balancer_vips=(VIP, "1.2.3.5"), source_ranges=("203.0.113.0/25",)), ep(LOCAL))
    assert elements(rules, FIREWALL_IPS) == {
        VIP_KEY: FIREWALL_CHAIN,
        ("1.2.3.5", "tcp", 80): FIREWALL_CHAIN,
    }


def test_ranges_of_which_none_could_be_read_let_nobody_in() -> None:
    rules = planned(full(source_ranges=()), ep(LOCAL))
    assert chains(rules)[FIREWALL_CHAIN] == FirewallChain(FIREWALL_CHAIN, ())
    assert elements(rules, FIREWALL_IPS) == {VIP_KEY: FIREWALL_CHAIN}


def test_no_ranges_no_firewall() -> None:
    rules = planned(full(source_ranges=None), ep(LOCAL))
    assert FIREWALL_CHAIN not in chains(rules)
    assert elements(rules, FIREWALL_IPS) == {}


def test_ranges_without_a_vip_guard_nothing() -> None:
    rules = planned(full(load_balancer_vips=(), source_ranges=("203.0.113.0/25",)), ep(LOCAL))
    assert FIREWALL_CHAIN not in chains(rules)
    assert elements(rules, FIREWALL_IPS) == {}


def test_ranges_hold_when_there_are_no_endpoints() -> None:
    """Whoever may not connect learns nothing, not even that nobody is there."""
    rules = planned(full(source_ranges=("203.0.113.0/25",)))
    assert [chain.name for chain in rules.chains] == [FIREWALL_CHAIN]
    assert elements(rules, FIREWALL_IPS) == {VIP_KEY: FIREWALL_CHAIN}
    assert elements(rules, NO_ENDPOINT_SERVICES)[VIP_KEY] == REJECT_CHAIN


# --- affinity and endpoint chains --------------------------------------------------------------------------------


def test_affinity_gives_each_endpoint_a_chain_and_a_set() -> None:
    rules = planned(port("ns5/svc5", "172.30.0.45", affinity_seconds=10800), ep("10.180.0.3"))
    base = "GTK6MW7G-ns5/svc5/tcp/p80__10.180.0.3/80"
    assert rules.sets == (AffinitySet(f"affinity-{base}", 10800),)
    endpoint, service = rules.chains
    assert endpoint == EndpointChain(
        f"endpoint-{base}", "tcp", Target("10.180.0.3", 80), f"affinity-{base}", counter=False
    )
    assert isinstance(service, BalancingChain)
    assert service.targets == ()
    assert service.chains == (f"endpoint-{base}",)
    assert service.sticky == (StickyEndpoint(f"affinity-{base}", f"endpoint-{base}"),)


def test_affinity_exists_for_chosen_endpoints_only() -> None:
    """A client never sticks to what may not take traffic any more."""
    rules = planned(port(affinity_seconds=5), ep(LOCAL), ep(REMOTE, "other", state="gone"))
    assert len(rules.sets) == 1
    assert REMOTE not in str(rules)


def test_both_policies_share_an_endpoints_chain_and_set() -> None:
    rules = planned(full(external=True, affinity_seconds=5), ep(LOCAL), ep(REMOTE, "other"))
    found = chains(rules)
    assert len(rules.sets) == 2
    assert found[LOCAL_CHAIN].chains[0] in found[SERVICE_CHAIN].chains
    assert len([c for c in found.values() if isinstance(c, EndpointChain)]) == 2


def test_ports_of_one_service_have_affinity_of_their_own() -> None:
    one = planned(port(affinity_seconds=5, port_name="a"), ep(LOCAL))
    other = planned(port(affinity_seconds=5, port_name="b"), ep(LOCAL))
    assert not {s.name for s in one.sets} & {s.name for s in other.sets}


def test_timeout_is_the_only_thing_that_a_timeout_changes() -> None:
    before, after = (planned(port(affinity_seconds=seconds), ep(LOCAL)) for seconds in (10800, 5))
    assert after.sets[0].timeout == 5
    assert dataclasses.replace(after, sets=before.sets) == before


@pytest.mark.parametrize("affinity", [0, 60])
def test_every_endpoint_has_a_chain_that_counts_if_asked(affinity: int) -> None:
    rules = planned(
        full(external=True, affinity_seconds=affinity), ep(LOCAL), ep(REMOTE, "other"), endpoint_chains="Always"
    )
    endpoints = [c for c in rules.chains if isinstance(c, EndpointChain)]
    assert [c.target.address for c in endpoints] == [LOCAL, REMOTE]
    assert all(c.counter for c in endpoints)
    assert all(bool(c.affinity_set) == bool(affinity) for c in endpoints)
    assert len(rules.sets) == (2 if affinity else 0)
    for chain in rules.balancing():
        assert chain.targets == ()
        assert bool(chain.sticky) == bool(affinity)
    assert chains(rules)[LOCAL_CHAIN].chains == (endpoints[0].name,)


# --- hairpin -----------------------------------------------------------------------------------------------------


def test_only_local_endpoints_are_hairpinned() -> None:
    rules = planned(port(), ep(LOCAL), ep(REMOTE, "other"), ep("10.180.0.3", ""), ep("10.180.0.4", number=8080))
    assert elements(rules, HAIRPIN).keys() == {
        (LOCAL, LOCAL, "tcp", 80),
        ("10.180.0.4", "10.180.0.4", "tcp", 8080),
    }


def test_nothing_is_local_to_a_node_without_a_name() -> None:
    assert elements(planned(port(), ep(LOCAL, ""), node=""), HAIRPIN) == {}


def test_node_names_are_compared_exactly() -> None:
    assert elements(planned(port(), ep(LOCAL, NODE.upper())), HAIRPIN) == {}
