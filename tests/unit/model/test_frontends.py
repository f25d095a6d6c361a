"""Frontends that several service ports claim: the same winner everywhere, whatever happened before."""

import itertools
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nodeproxy.kube.addresses import Family
from nodeproxy.model.frontends import Clash, Frontend, FrontendIndex, claims
from nodeproxy.model.service import ServicePort, ServicePortName

VIP = Frontend("192.0.2.5", "TCP", 80)
OTHER = Frontend("192.0.2.6", "TCP", 80)
NODE_PORT = Frontend(None, "TCP", 30080)
OLD, NEW = "2024-01-01T00:00:00Z", "2024-06-01T00:00:00Z"


def named(service: str, namespace: str = "ns", port_name: str = "", protocol: str = "TCP") -> ServicePortName:
    return ServicePortName(namespace, service, port_name, protocol)  # type: ignore[arg-type]


A, B, C = named("a"), named("b"), named("c")


def test_a_service_port_claims_each_of_its_frontends_once() -> None:
    port = ServicePort(
        name=named("web", protocol="UDP"),
        family=Family.IPV4,
        created="",
        cluster_ip="10.96.0.1",
        port=53,
        node_port=30053,
        external_ips=("192.0.2.1", "10.96.0.1"),
        load_balancer_vips=("203.0.113.1", "192.0.2.1"),
    )
    assert claims(port) == (
        Frontend("10.96.0.1", "UDP", 53),
        Frontend("192.0.2.1", "UDP", 53),
        Frontend("203.0.113.1", "UDP", 53),
        Frontend(None, "UDP", 30053),
    )


def test_a_service_port_without_a_node_port_claims_none() -> None:
    port = ServicePort(name=A, family=Family.IPV6, created="", cluster_ip="fd00::1", port=80)
    assert claims(port) == (Frontend("fd00::1", "TCP", 80),)


@pytest.mark.parametrize(
    ("frontend", "text"),
    [
        (Frontend("10.96.0.1", "TCP", 80), "10.96.0.1:80/TCP"),
        (Frontend("fd00::1", "UDP", 53), "[fd00::1]:53/UDP"),
        (Frontend(None, "SCTP", 30080), "NodePort 30080/SCTP"),
    ],
)
def test_a_frontend_reads_well(frontend: Frontend, text: str) -> None:
    assert str(frontend) == text


def test_the_older_wins_and_the_younger_takes_over_in_the_call_in_which_it_leaves() -> None:
    index = FrontendIndex()
    assert index.update(B, [VIP], OLD) == set()
    assert index.update(A, [VIP, OTHER], NEW) == {A}
    assert index.lost(A) == {VIP}
    assert index.lost(B) == frozenset()
    assert index.winner(VIP) == B
    assert index.winner(OTHER) == A
    assert index.clashes() == (Clash(VIP, B, (A,)),)

    assert index.remove(B) == {A}
    assert index.lost(A) == frozenset()
    assert index.winner(VIP) == A
    assert index.clashes() == ()

    assert index.update(B, [VIP], OLD) == {A}
    assert index.lost(A) == {VIP}


def test_a_winner_that_gives_up_one_claim_hands_over_that_one() -> None:
    index = FrontendIndex()
    index.update(A, [VIP, OTHER], OLD)
    index.update(B, [VIP, OTHER], NEW)
    assert index.lost(B) == {VIP, OTHER}
    assert index.update(A, [OTHER], OLD) == {B}
    assert index.lost(B) == {OTHER}


def test_a_loser_that_leaves_changes_nothing_for_others() -> None:
    index = FrontendIndex()
    index.update(A, [VIP], OLD)
    index.update(B, [VIP], NEW)
    index.update(C, [VIP], NEW)
    assert index.remove(B) == set()
    assert index.clashes() == (Clash(VIP, A, (C,)),)
    assert index.update(C, [], NEW) == {C}
    assert index.clashes() == ()


def test_losers_stay_losers_when_another_succeeds() -> None:
    index = FrontendIndex()
    for name in (A, B, C):
        index.update(name, [VIP], OLD)
    assert index.remove(A) == {B}
    assert index.lost(C) == {VIP}
    assert index.clashes() == (Clash(VIP, B, (C,)),)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((B, OLD), (A, NEW)),
        ((B, "2024-01-01T01:00:00+02:00"), (A, "2024-01-01T00:00:00Z")),  # an hour earlier, though it reads later
        ((B, "2024-01-01T00:00:00Z"), (A, "2024-01-01T00:00:00.5Z")),
        ((B, "2024-01-01t00:00:00z"), (A, NEW)),
        ((B, "2024-01-01T00:00:00"), (A, NEW)),
        ((B, "9999-12-31T23:59:59Z"), (A, "")),
        ((B, "0001-01-01T00:00:00+14:00"), (A, OLD)),
        ((B, NEW), (A, "yesterday")),
        ((A, OLD), (B, "2024-01-01T01:00:00+01:00")),  # the same instant
        ((A, ""), (B, "nonsense")),
        ((named("z", "a"), OLD), (named("a", "b"), OLD)),
        ((named("a", port_name="x"), OLD), (named("a", port_name="y"), OLD)),
        ((named("a", port_name="x"), OLD), (named("b", port_name="a"), OLD)),
        ((named("a", protocol="TCP"), OLD), (named("a", protocol="UDP"), OLD)),
    ],
)
def test_order_is_by_age_then_namespace_and_name_then_port(
    first: tuple[ServicePortName, str], second: tuple[ServicePortName, str]
) -> None:
    for order in itertools.permutations((first, second)):
        index = FrontendIndex()
        for name, created in order:
            index.update(name, [VIP], created)
        assert index.clashes() == (Clash(VIP, first[0], (second[0],)),)


def test_a_service_that_is_created_anew_falls_behind() -> None:
    index = FrontendIndex()
    index.update(A, [VIP], OLD)
    index.update(B, [VIP], "2024-03-01T00:00:00Z")
    assert index.update(A, [VIP], NEW) == {A, B}
    assert index.lost(A) == {VIP}
    assert index.update(A, [VIP], "2024-07-01T00:00:00Z") == set()


def test_another_protocol_port_or_kind_of_frontend_is_no_clash() -> None:
    index = FrontendIndex()
    for number, frontend in enumerate(
        [
            NODE_PORT,
            Frontend(None, "UDP", 30080),
            Frontend(None, "TCP", 30081),
            Frontend("192.0.2.5", "TCP", 30080),
            Frontend("192.0.2.5", "UDP", 30080),
        ]
    ):
        assert index.update(named(f"s{number}"), [frontend], OLD) == set()
    assert index.clashes() == ()


def test_a_repeated_claim_of_one_service_port_is_no_clash() -> None:
    index = FrontendIndex()
    assert index.update(A, [VIP, VIP], OLD) == set()
    assert index.update(A, [VIP], OLD) == set()
    assert index.clashes() == ()


def test_what_is_not_known_can_be_asked_for_and_removed() -> None:
    index = FrontendIndex()
    assert index.remove(A) == set()
    assert index.lost(A) == frozenset()
    assert index.winner(VIP) is None


def test_clashes_are_listed_addresses_first() -> None:
    index = FrontendIndex()
    for name in (A, B):
        index.update(name, [NODE_PORT, OTHER, VIP], OLD)
    assert [clash.frontend for clash in index.clashes()] == [VIP, OTHER, NODE_PORT]


FRONTENDS = [VIP, OTHER, NODE_PORT, Frontend("192.0.2.5", "UDP", 80)]
NAMES = [A, B, named("a", "other"), named("a", port_name="x"), named("a", protocol="UDP")]
CREATED = ["", OLD, NEW, "2024-01-01T01:00:00+01:00", "nonsense"]
AGES = {"": (1, 0), "nonsense": (1, 0), OLD: (0, 1), "2024-01-01T01:00:00+01:00": (0, 1), NEW: (0, 2)}
State = dict[ServicePortName, tuple[frozenset[Frontend], str]]


def computed(state: State) -> dict[ServicePortName, frozenset[Frontend]]:
    """From scratch: what each service port loses."""
    lost: dict[ServicePortName, set[Frontend]] = {name: set() for name in state}
    for frontend in FRONTENDS:
        order = sorted((AGES[created], name) for name, (wanted, created) in state.items() if frontend in wanted)
        for _, name in order[1:]:
            lost[name].add(frontend)
    return {name: frozenset(found) for name, found in lost.items()}


class Changes(RuleBasedStateMachine):
    """Any sequence of changes leaves what a computation from scratch gives, and each call names who is affected."""

    def __init__(self) -> None:
        super().__init__()
        self.index = FrontendIndex()
        self.state: State = {}

    @rule(
        name=st.sampled_from(NAMES),
        wanted=st.lists(st.sampled_from(FRONTENDS), max_size=4),
        created=st.sampled_from(CREATED),
    )
    def update(self, name: ServicePortName, wanted: list[Frontend], created: str) -> None:
        before = computed(self.state)
        given_claims = list(wanted)
        changed = self.index.update(name, wanted, created)
        assert wanted == given_claims
        self.state[name] = (frozenset(wanted), created)
        after = computed(self.state)
        assert changed == {n for n in after if before.get(n, frozenset()) != after[n]}

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name: ServicePortName) -> None:
        before = computed(self.state)
        changed = self.index.remove(name)
        self.state.pop(name, None)
        after = computed(self.state)
        assert changed == {n for n in after if before[n] != after[n]}

    @invariant()
    def as_from_scratch(self) -> None:
        lost = computed(self.state)
        for name in NAMES:
            assert self.index.lost(name) == lost.get(name, frozenset())
        listed = {clash.frontend: clash for clash in self.index.clashes()}
        for frontend in FRONTENDS:
            claimants = {name for name, (wanted, _) in self.state.items() if frontend in wanted}
            losers = {name for name in claimants if frontend in lost[name]}
            winners = claimants - losers
            assert self.index.winner(frontend) == next(iter(winners), None)
            assert (frontend in listed) is bool(losers)
            if losers:
                assert {listed[frontend].winner} == winners
                assert set(listed[frontend].losers) == losers


Changes.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestChanges = Changes.TestCase


@given(
    st.dictionaries(
        st.sampled_from(NAMES), st.tuples(st.sets(st.sampled_from(FRONTENDS)), st.sampled_from(CREATED)), min_size=1
    ),
    st.randoms(use_true_random=False),
)
def test_clashes_do_not_depend_on_the_order_of_arrival(
    state: dict[ServicePortName, tuple[set[Frontend], str]], random: object
) -> None:
    outcomes = []
    for _ in range(2):
        names = list(state)
        random.shuffle(names)  # type: ignore[attr-defined]
        index = FrontendIndex()
        for name in names:
            index.update(name, state[name][0], state[name][1])
        outcomes.append(index.clashes())
    assert outcomes[0] == outcomes[1]


def test_thirty_thousand_service_ports_cost_little() -> None:
    made = [
        (
            named(f"s{n}"),
            (
                Frontend(f"10.96.{n >> 8}.{n & 255}", "TCP", 80),
                Frontend(f"10.97.{n >> 8}.{n & 255}", "TCP", 80),
                Frontend(None, "TCP", n),
            ),
        )
        for n in range(30_000)
    ]
    start = time.perf_counter()
    index = FrontendIndex()
    for name, wanted in made:
        index.update(name, wanted, OLD)
    assert time.perf_counter() - start < 2
    assert index.clashes() == ()

    tracemalloc.start()
    try:
        index = FrontendIndex()
        for name, wanted in made:
            index.update(name, wanted, OLD)
        assert tracemalloc.get_traced_memory()[0] < 20_000_000
    finally:
        tracemalloc.stop()


def test_thousands_that_claim_one_frontend_cost_little() -> None:
    index = FrontendIndex()
    start = time.perf_counter()
    for n in range(5_000):
        index.update(named(f"s{n:04}"), [VIP], OLD)
    for n in range(4_999):
        assert index.remove(named(f"s{n:04}")) == {named(f"s{n + 1:04}")}
    assert time.perf_counter() - start < 5
    assert index.clashes() == ()
