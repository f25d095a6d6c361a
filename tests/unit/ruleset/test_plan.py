"""What becomes of traffic to each frontend of a service port: chains, elements and verdicts."""

import itertools

import pytest

from nodeproxy.model.endpoints import Endpoint
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
    BalancingChain,
    EndpointChain,
    ExternalChain,
    ServiceRules,
    Target,
)
from unit.ruleset.build import chains, elements, ep, planned, port
from unit.ruleset.plan_shapes import (
    CLUSTER_IP,
    CLUSTER_KEY,
    EXTERNAL_CHAIN,
    EXTERNAL_IP,
    EXTERNAL_KEY,
    LOCAL,
    LOCAL_CHAIN,
    NODE_PORT,
    NODE_PORT_KEY,
    REMOTE,
    SERVICE_CHAIN,
    VIP_KEY,
    full,
)

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
