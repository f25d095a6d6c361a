"""What becomes of traffic to each frontend of a service port: chains, elements and verdicts."""

import dataclasses
import itertools

import pytest

from nodeproxy.kube.addresses import Family
from nodeproxy.kube.objects import (
    LoadBalancerIngress,
    LoadBalancerStatus,
    ObjectMeta,
    Service,
    ServicePortSpec,
    ServiceSpec,
    ServiceStatus,
)
from nodeproxy.model.endpoints import Endpoint
from nodeproxy.model.frontends import Frontend, claims
from nodeproxy.model.service import ServicePort, service_ports
from nodeproxy.ruleset import names
from nodeproxy.ruleset.rules import (
    CLUSTER_IPS,
    DROP,
    FIREWALL_IPS,
    HAIRPIN,
    NO_ENDPOINT_NODE_PORTS,
    NO_ENDPOINT_SERVICES,
    REJECT_CHAIN,
    SERVICE_IPS,
    SERVICE_NODE_PORTS,
    AffinitySet,
    BalancingChain,
    EndpointChain,
    ExternalChain,
    FirewallChain,
    ServiceRules,
    StickyEndpoint,
    Target,
)
from unit.ruleset.build import NODE, V4, V6, chains, elements, ep, planned, port

BASE = "ULMVA6XW-ns1/svc1/tcp/p80"
SERVICE_CHAIN, LOCAL_CHAIN = f"service-{BASE}", f"local-{BASE}"
EXTERNAL_CHAIN, FIREWALL_CHAIN = f"external-{BASE}", f"firewall-{BASE}"

CLUSTER_IP, EXTERNAL_IP, VIP, NODE_PORT = "172.30.0.41", "192.168.99.22", "1.2.3.4", 3001
CLUSTER_KEY, EXTERNAL_KEY, VIP_KEY = ((a, "tcp", 80) for a in (CLUSTER_IP, EXTERNAL_IP, VIP))
NODE_PORT_KEY = ("tcp", NODE_PORT)

LOCAL, REMOTE = "10.180.0.1", "10.180.0.2"


def full(*, internal: bool = False, external: bool = False, **fields: object) -> ServicePort:
    """A service port with every kind of frontend."""
    values: dict[str, object] = {
        "node_port": NODE_PORT,
        "external_ips": (EXTERNAL_IP,),
        "load_balancer_vips": (VIP,),
        "internal_policy_local": internal,
        "external_policy_local": external,
    }
    return port(**{**values, **fields})  # type: ignore[arg-type]


# What there is, which endpoints the cluster's and this node's traffic may use, and whether any node has a usable one.
WORLDS: dict[str, tuple[tuple[Endpoint, ...], tuple[str, ...], tuple[str, ...], bool]] = {
    "none": ((), (), (), False),
    "unusable": ((ep(LOCAL, state="starting"), ep(REMOTE, "other", state="gone")), (), (), False),
    "remote": ((ep(REMOTE, "other"),), (REMOTE,), (), True),
    "local": ((ep(LOCAL),), (LOCAL,), (LOCAL,), True),
    "local terminating": ((ep(LOCAL, state="leaving"),), (LOCAL,), (LOCAL,), True),
    "remote terminating": ((ep(REMOTE, "other", state="leaving"),), (REMOTE,), (), True),
    "mixed": ((ep(LOCAL), ep(REMOTE, "other")), (LOCAL, REMOTE), (LOCAL,), True),
    "mixed, local terminating": (
        (ep(LOCAL, state="leaving"), ep(REMOTE, "other")),
        (REMOTE,),
        (LOCAL,),
        True,
    ),
}
POLICIES = list(itertools.product((False, True), repeat=2))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("internal", "external"), POLICIES)
def test_each_policy_in_each_situation(world: str, internal: bool, external: bool) -> None:
    """No usable endpoint anywhere: reject. None that a Local policy allows here: drop. Else: the policy's chain."""
    endpoints, cluster, local, usable = WORLDS[world]
    rules = planned(full(internal=internal, external=external), *endpoints)
    found = chains(rules)

    uses_local = internal or external
    expected: dict[str, tuple[str, ...]] = {}
    if cluster:
        expected[SERVICE_CHAIN] = cluster
    if uses_local and local:
        expected[LOCAL_CHAIN] = local
    balancing = {c.name: tuple(t.address for t in c.targets) for c in found.values() if isinstance(c, BalancingChain)}
    assert balancing == expected

    if not usable:
        internal_verdict = external_verdict = REJECT_CHAIN
    else:
        internal_verdict = DROP if internal and not local else ""
        external_verdict = DROP if external and not local else ""

    if internal_verdict:
        assert CLUSTER_KEY not in elements(rules, SERVICE_IPS)
        assert elements(rules, NO_ENDPOINT_SERVICES)[CLUSTER_KEY] == internal_verdict
    else:
        assert elements(rules, SERVICE_IPS)[CLUSTER_KEY] == (LOCAL_CHAIN if internal else SERVICE_CHAIN)
        assert CLUSTER_KEY not in elements(rules, NO_ENDPOINT_SERVICES)

    for key in (EXTERNAL_KEY, VIP_KEY):
        assert elements(rules, SERVICE_IPS).get(key) == (EXTERNAL_CHAIN if usable else None)
        assert elements(rules, NO_ENDPOINT_SERVICES).get(key, "") == external_verdict
    assert elements(rules, SERVICE_NODE_PORTS) == ({NODE_PORT_KEY: EXTERNAL_CHAIN} if usable else {})
    assert elements(rules, NO_ENDPOINT_NODE_PORTS) == ({NODE_PORT_KEY: external_verdict} if external_verdict else {})
    assert elements(rules, CLUSTER_IPS) == {(CLUSTER_IP,): None}
    assert elements(rules, FIREWALL_IPS) == {}

    if usable:
        policy_chain = None if external_verdict else (LOCAL_CHAIN if external else SERVICE_CHAIN)
        assert found[EXTERNAL_CHAIN] == ExternalChain(EXTERNAL_CHAIN, external, SERVICE_CHAIN, policy_chain)
        assert found[EXTERNAL_CHAIN].cluster_chain in found, "the short circuit needs the cluster's chain"
    else:
        assert EXTERNAL_CHAIN not in found

    assert rules.lacks_local_internal == (internal_verdict == DROP)
    assert rules.lacks_local_external == (external_verdict == DROP)
    hairpin = {address for address in {*cluster, *(local if uses_local else ())} if address == LOCAL}
    assert elements(rules, HAIRPIN) == {(a, a, "tcp", 80): None for a in hairpin}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("internal", "external"), POLICIES)
@pytest.mark.parametrize("affinity", [0, 10800])
def test_whatever_a_plan_refers_to_it_has_defined_before(
    world: str, internal: bool, external: bool, affinity: int
) -> None:
    endpoints = WORLDS[world][0]
    shape = full(internal=internal, external=external, affinity_seconds=affinity, source_ranges=("10.0.0.0/8",))
    for chains_for in ("WhenAffinity", "Always"):
        _check_references(planned(shape, *endpoints, endpoint_chains=chains_for))  # type: ignore[arg-type]


def _check_references(rules: ServiceRules) -> None:
    sets = {affinity_set.name for affinity_set in rules.sets}
    defined: set[str] = set()
    for chain in rules.chains:
        if isinstance(chain, BalancingChain):
            assert bool(chain.targets) != bool(chain.chains), "never empty, never both"
            assert {*chain.chains, *(s.chain for s in chain.sticky)} <= defined
            assert {s.affinity_set for s in chain.sticky} <= sets
        elif isinstance(chain, EndpointChain):
            assert chain.affinity_set is None or chain.affinity_set in sets
        elif isinstance(chain, ExternalChain):
            assert chain.cluster_chain in defined
            assert chain.policy_chain is None or chain.policy_chain in defined
        defined.add(chain.name)
    verdicts = {e.verdict for e in rules.elements} - {DROP, REJECT_CHAIN}
    assert verdicts <= defined


# --- the decision table, row by row ------------------------------------------------------------------------------


def test_no_endpoints_no_chains_and_a_comment_that_says_whose_it_is() -> None:
    rules = planned(port())
    assert rules.chains == ()
    assert rules.sets == ()
    [element] = rules.elements
    assert element.container == NO_ENDPOINT_SERVICES
    assert (element.key, element.verdict, element.comment) == (CLUSTER_KEY, REJECT_CHAIN, "ns1/svc1:p80")


def test_elements_that_lead_somewhere_have_no_comment() -> None:
    rules = planned(full(source_ranges=("10.0.0.0/8",)), ep(LOCAL))
    assert {e.comment for e in (*rules.elements, *rules.shared)} == {""}


def test_comment_of_a_very_long_name_still_fits() -> None:
    rules = planned(port("n" * 63 + "/" + "s" * 63, port_name="p" * 63))
    assert len(rules.elements[0].comment) == 128


def test_one_service_with_an_internal_policy_only_has_no_external_chain() -> None:
    rules = planned(port(internal_policy_local=True), ep(LOCAL), ep(REMOTE, "other"))
    assert [chain.name for chain in rules.chains] == [LOCAL_CHAIN]
    assert elements(rules, SERVICE_IPS) == {CLUSTER_KEY: LOCAL_CHAIN}


def test_internal_local_without_local_endpoints_drops_and_with_none_at_all_rejects() -> None:
    shape = port(internal_policy_local=True)
    some = planned(shape, ep(REMOTE, "other"))
    assert elements(some, NO_ENDPOINT_SERVICES) == {CLUSTER_KEY: DROP}
    assert some.lacks_local_internal
    none = planned(shape)
    assert elements(none, NO_ENDPOINT_SERVICES) == {CLUSTER_KEY: REJECT_CHAIN}
    assert not none.lacks_local_internal


def test_external_local_without_local_endpoints_leads_to_the_short_circuit_and_drops_the_rest() -> None:
    """Pods and the node itself reach endpoints elsewhere; clients from outside do not (KEP-1669)."""
    rules = planned(full(external=True), ep(REMOTE, "other"))
    assert elements(rules, SERVICE_IPS) == {
        CLUSTER_KEY: SERVICE_CHAIN,
        EXTERNAL_KEY: EXTERNAL_CHAIN,
        VIP_KEY: EXTERNAL_CHAIN,
    }
    assert elements(rules, NO_ENDPOINT_SERVICES) == {EXTERNAL_KEY: DROP, VIP_KEY: DROP}
    assert elements(rules, NO_ENDPOINT_NODE_PORTS) == {NODE_PORT_KEY: DROP}
    assert chains(rules)[EXTERNAL_CHAIN] == ExternalChain(EXTERNAL_CHAIN, True, SERVICE_CHAIN, None)


def test_external_addresses_are_served_on_a_port_without_a_node_port() -> None:
    rules = planned(port(external_ips=(EXTERNAL_IP,)), ep(LOCAL))
    assert elements(rules, SERVICE_IPS) == {CLUSTER_KEY: SERVICE_CHAIN, EXTERNAL_KEY: EXTERNAL_CHAIN}
    assert elements(rules, SERVICE_NODE_PORTS) == {}


def test_local_external_policy_without_any_external_frontend_yet_changes_nothing() -> None:
    rules = planned(port(external_policy_local=True), ep(REMOTE, "other"))
    assert [chain.name for chain in rules.chains] == [SERVICE_CHAIN]
    assert {e.container for e in rules.elements} == {SERVICE_IPS}


def test_protocol_is_part_of_every_key() -> None:
    """DNS over TCP and UDP, with one node port number for both."""
    tcp = planned(full(), ep(LOCAL))
    udp = planned(full(protocol="UDP"), ep(LOCAL))
    for container in (SERVICE_IPS, SERVICE_NODE_PORTS, HAIRPIN):
        assert not elements(tcp, container).keys() & elements(udp, container).keys()
    assert elements(udp, SERVICE_NODE_PORTS).keys() == {("udp", NODE_PORT)}
    assert {chain.protocol for chain in udp.balancing()} == {"udp"}


def test_endpoints_keep_the_order_of_their_text() -> None:
    rules = planned(port(), ep("10.180.0.10"), ep("10.180.0.2"), ep("10.180.0.9", number=8080))
    [chain] = rules.balancing()
    assert chain.targets == (Target("10.180.0.10", 80), Target("10.180.0.2", 80), Target("10.180.0.9", 8080))


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


# --- one address, several roles ----------------------------------------------------------------------------------


def test_address_that_is_external_ip_and_vip_has_one_element_and_stays_guarded() -> None:
    rules = planned(full(external_ips=(VIP,), source_ranges=("203.0.113.0/25",)), ep(LOCAL))
    assert elements(rules, SERVICE_IPS) == {CLUSTER_KEY: SERVICE_CHAIN, VIP_KEY: EXTERNAL_CHAIN}
    assert elements(rules, FIREWALL_IPS) == {VIP_KEY: FIREWALL_CHAIN}


@pytest.mark.parametrize("endpoints", [(), (ep(LOCAL),), (ep(REMOTE, "other"),)], ids=["none", "local", "remote"])
@pytest.mark.parametrize(("internal", "external"), POLICIES)
def test_cluster_ip_that_is_external_ip_and_vip_as_well_is_treated_as_cluster_ip(
    endpoints: tuple[Endpoint, ...], internal: bool, external: bool
) -> None:
    shape = full(internal=internal, external=external, external_ips=(CLUSTER_IP,), load_balancer_vips=(CLUSTER_IP,))
    plain = full(internal=internal, external=external, external_ips=(), load_balancer_vips=())
    found, expected = planned(shape, *endpoints), planned(plain, *endpoints)
    for container in (SERVICE_IPS, NO_ENDPOINT_SERVICES):
        assert elements(found, container) == elements(expected, container)


# --- frontends that another service holds ------------------------------------------------------------------------


def test_lost_frontends_have_no_element() -> None:
    shape = full(external=True, source_ranges=("203.0.113.0/25",))
    for endpoints in ((), (ep(LOCAL),), (ep(REMOTE, "other"),)):
        whole = planned(shape, *endpoints)
        for frontend in claims(shape):
            rest = planned(shape, *endpoints, lost=frozenset({frontend}))
            key = ("tcp", frontend.port) if frontend.address is None else (frontend.address, "tcp", frontend.port)
            gone = set(whole.elements) - set(rest.elements)
            assert gone == {e for e in whole.elements if e.key == key}
            assert gone
            assert rest.chains == whole.chains


def test_loser_of_everything_has_no_dispatch_element_at_all() -> None:
    shape = full(source_ranges=("203.0.113.0/25",))
    rules = planned(shape, ep(LOCAL), lost=frozenset(claims(shape)))
    assert rules.elements == ()
    assert elements(rules, CLUSTER_IPS) == {(CLUSTER_IP,): None}


def test_same_address_on_another_port_is_not_lost() -> None:
    lost = frozenset({Frontend(VIP, "TCP", 81), Frontend(VIP, "UDP", 80), Frontend(None, "TCP", 3002)})
    assert planned(full(), ep(LOCAL), lost=lost) == planned(full(), ep(LOCAL))


# --- from objects, both families ---------------------------------------------------------------------------------


def _dual_stack_service() -> Service:
    return Service(
        metadata=ObjectMeta(name="svc1", namespace="ns1"),
        spec=ServiceSpec(
            type="LoadBalancer",
            cluster_ip=CLUSTER_IP,
            cluster_ips=(CLUSTER_IP, "fd00:172:30::41"),
            ip_families=("IPv4", "IPv6"),
            ports=(ServicePortSpec(port=80, name="p80", node_port=NODE_PORT),),
            external_ips=(EXTERNAL_IP, "2001:db8::1"),
            external_traffic_policy="Local",
            session_affinity="ClientIP",
            load_balancer_source_ranges=("203.0.113.0/25",),
        ),
        status=ServiceStatus(
            load_balancer=LoadBalancerStatus(
                ingress=(
                    LoadBalancerIngress(ip=VIP),
                    LoadBalancerIngress(ip="2001:db8::2", ip_mode="VIP"),
                    LoadBalancerIngress(ip="1.2.3.9", ip_mode="Proxy"),
                )
            )
        ),
    )


def test_families_share_the_names_of_service_chains_but_not_of_endpoints() -> None:
    plans: dict[Family, ServiceRules] = {}
    for family, address in ((V4, LOCAL), (V6, "fd00:10:180::1")):
        [shape] = service_ports(_dual_stack_service(), family)
        plans[family] = planned(shape, ep(address))
    shared = set(chains(plans[V4])) & set(chains(plans[V6]))
    assert shared == {SERVICE_CHAIN, LOCAL_CHAIN, EXTERNAL_CHAIN, FIREWALL_CHAIN}
    assert [s.name for s in plans[V6].sets] == ["affinity-ZVRFLKHO-ns1/svc1/tcp/p80__fd00.10.180..1/80"]
    assert [s.name for s in plans[V4].sets] == ["affinity-5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80"]


def test_each_family_serves_its_own_addresses_only() -> None:
    [v4], [v6] = (service_ports(_dual_stack_service(), family) for family in (V4, V6))
    found = planned(v6, ep("fd00:10:180::1"))
    assert elements(found, SERVICE_IPS) == {
        ("fd00:172:30::41", "tcp", 80): SERVICE_CHAIN,
        ("2001:db8::1", "tcp", 80): EXTERNAL_CHAIN,
        ("2001:db8::2", "tcp", 80): EXTERNAL_CHAIN,
    }
    found = planned(v4, ep(LOCAL))
    assert elements(found, SERVICE_IPS).keys() == {CLUSTER_KEY, EXTERNAL_KEY, VIP_KEY}
    assert elements(found, SERVICE_NODE_PORTS) == {NODE_PORT_KEY: EXTERNAL_CHAIN}


def test_ranges_of_the_other_family_only_close_this_ones_vip() -> None:
    [v6] = service_ports(_dual_stack_service(), V6)
    rules = planned(v6, ep("fd00:10:180::1"))
    assert chains(rules)[FIREWALL_CHAIN] == FirewallChain(FIREWALL_CHAIN, ())
    assert elements(rules, FIREWALL_IPS) == {("2001:db8::2", "tcp", 80): FIREWALL_CHAIN}


def test_names_in_a_plan_are_the_published_ones() -> None:
    rules = planned(full(external=True, affinity_seconds=5), ep(LOCAL))
    base = names.service_base(rules.name)
    assert base == BASE
    assert {chain.name.partition("-")[0] for chain in rules.chains} == {"endpoint", "service", "local", "external"}


def test_equal_input_gives_equal_plans() -> None:
    """Plans are compared to find out what changed, so equality must not depend on identity or order of making."""
    one = planned(full(external=True), ep(LOCAL), ep(REMOTE, "other"))
    other = planned(full(external=True), ep(REMOTE, "other"), ep(LOCAL))
    assert one == other
    assert hash(one) == hash(other)
