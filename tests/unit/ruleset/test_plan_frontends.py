"""Which frontends lead to a service port: shared addresses, lost claims, both families."""

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
from nodeproxy.model.service import service_ports
from nodeproxy.ruleset import names
from nodeproxy.ruleset.rules import (
    CLUSTER_IPS,
    FIREWALL_IPS,
    NO_ENDPOINT_SERVICES,
    SERVICE_IPS,
    SERVICE_NODE_PORTS,
    FirewallChain,
    ServiceRules,
)
from unit.ruleset.build import V4, V6, chains, elements, ep, planned
from unit.ruleset.plan_shapes import (
    BASE,
    CLUSTER_IP,
    CLUSTER_KEY,
    EXTERNAL_CHAIN,
    EXTERNAL_IP,
    EXTERNAL_KEY,
    FIREWALL_CHAIN,
    LOCAL,
    LOCAL_CHAIN,
    NODE_PORT,
    NODE_PORT_KEY,
    REMOTE,
    SERVICE_CHAIN,
    VIP,
    VIP_KEY,
    full,
)

POLICIES = list(itertools.product((False, True), repeat=2))


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
