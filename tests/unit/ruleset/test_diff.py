"""Changes of a table: valid for the kernel, consistent in between, complete in the end."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeproxy.ruleset import diff
from nodeproxy.ruleset.operations import (
    AddContainer,
    Piece,
    Rule,
)
from nodeproxy.ruleset.rules import CLUSTER_IPS, SERVICE_IPS, Target
from unit.ruleset.cluster import BIG, Cluster, Shape, Table, settle, started
from unit.ruleset.pretend_kernel import PretendKernel

COUNTS = st.one_of(
    st.integers(0, 3).map(lambda n: tuple(range(1, n + 1))),
    st.lists(st.integers(1, 6), max_size=4, unique=True).map(lambda found: tuple(sorted(found))),
)
SHAPES = st.builds(
    Shape,
    number=st.integers(0, 5),
    endpoints=COUNTS,
    remote=st.booleans(),
    affinity=st.sampled_from([0, 0, 60, 120]),
    internal=st.booleans(),
    external=st.booleans(),
    node_port=st.sampled_from([0, 0, 30080, 30081]),
    external_ip=st.sampled_from([0, 0, 1, 2]),
    vip=st.sampled_from([0, 0, 1, 3]),
    guarded=st.booleans(),
    protocol=st.sampled_from(["TCP", "TCP", "UDP", "SCTP"]),
)
STEPS = st.lists(
    st.one_of(
        st.lists(st.one_of(SHAPES, st.integers(0, 5)), min_size=1, max_size=6),
        st.sampled_from(["tidy", "wait", "mask", "everywhere", "address", "chains"]),
    ),
    min_size=1,
    max_size=8,
)
Step = list[Shape | int] | str


def take(table: Table, step: Step, *, finely: bool = False) -> None:
    """One step of a course of events."""
    cluster = table.cluster
    match step:
        case "tidy":
            table.tidy()
            return
        case "wait":
            table.tidy(0.7)
            return
        case "mask":
            cluster.masquerade_bit = 29 - cluster.masquerade_bit
            updates = dict(cluster.plans)
            table.change(updates, finely=finely)  # type: ignore[arg-type]
            return
        case "everywhere":
            cluster.everywhere = not cluster.everywhere
        case "address":
            cluster.node_addresses = ("192.168.0.2", "192.168.0.3")[: 3 - len(cluster.node_addresses)]
        case "chains":
            cluster.endpoint_chains = "Always" if cluster.endpoint_chains == "WhenAffinity" else "WhenAffinity"
        case list():
            table.change(cluster.set(step), finely=finely)
            return
    table.change(cluster.replan(), finely=finely)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_any_course_of_changes_ends_where_a_fresh_table_would(steps: list[Step]) -> None:
    """And on the way the kernel takes every transaction, and the mirror is what it holds."""
    table = started()
    for step in steps:
        take(table, step)
    settle(table)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.booleans(), st.sampled_from([1, 8, 40]))
def test_any_prefix_of_the_pieces_serves_each_frontend_as_before_or_as_after(
    steps: list[Step], finely: bool, limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diff, "PIECE_WEIGHT", limit)
        table = started()
        for step in steps:
            take(table, step, finely=finely)
        settle(table)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 2, BIG, BIG + 1])), min_size=1, max_size=5))
def test_services_grow_beyond_a_shared_map_and_shrink_again(steps: list[tuple[int, int]]) -> None:
    table = started()
    for number, count in steps:
        table.change(table.cluster.set([Shape(number, tuple(range(1, count + 1)))]))
        assert all(len(content) <= 1024 or len(content) in (BIG, BIG + 1) for content in table.kernel.slots.values())
    settle(table)


@settings(max_examples=100, deadline=None)
@given(STEPS, STEPS, STEPS, st.booleans())
def test_table_that_another_run_left_is_corrected(
    left: list[Step], meanwhile: list[Step], afterwards: list[Step], finely: bool
) -> None:
    """The cluster changed while nobody looked after the table: none of its leftovers survives."""
    earlier = started()
    for step in left:
        take(earlier, step)
    cluster, kernel = earlier.cluster, earlier.kernel.copy()
    for step in meanwhile:
        take(earlier, step)
    table = Table(cluster, kernel)
    table.now = 5.0
    table.correct(finely=finely)
    for step in afterwards:
        take(table, step)
    settle(table)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_table_that_is_right_is_not_touched(steps: list[Step]) -> None:
    earlier = started()
    for step in steps:
        take(earlier, step)
    earlier.tidy_all()
    table = Table(earlier.cluster, earlier.kernel.copy())
    assert table.correct() == 0
    assert table.state.next_tidy() is None
    settle(table)


def _vandalise(kernel: PretendKernel, chance: random.Random) -> None:
    """Do to a table what a careless program may do, within what nftables lets it."""
    for _ in range(chance.randint(1, 6)):
        match chance.randrange(9):
            case 0 if kernel.chains:
                kernel.chains[chance.choice(sorted(kernel.chains))].clear()
            case 1 if kernel.chains:
                kernel.chains[chance.choice(sorted(kernel.chains))].append(Rule("drop", "", "?"))
            case 2:
                content = kernel.elements[chance.choice(sorted(kernel.elements))]
                if content:
                    del content[chance.choice(sorted(content, key=str))]
            case 3:
                kernel.elements[SERVICE_IPS]["10.9.9.9", "tcp", 9] = "reject-chain"
                kernel.elements[CLUSTER_IPS][("10.9.9.9",)] = None
            case 4:
                for key in kernel.elements[SERVICE_IPS]:
                    kernel.elements[SERVICE_IPS][key] = "drop"
            case 5:
                kernel.chains["service-STRAY-x/y/tcp/z"] = [Rule("goto reject-chain", "", "?")]
                kernel.containers["affinity-STRAY-x/y"] = ("set", "flags dynamic,timeout ; timeout 5s")
                kernel.elements["affinity-STRAY-x/y"] = {}
            case 6:
                filled = [content for content in kernel.slots.values() if content]
                if filled:
                    content = chance.choice(filled)
                    del content[chance.choice(sorted(content))]
            case 7:
                filled = [content for map_name, content in kernel.slots.items() if content and "tcp" in map_name]
                if filled:
                    content = chance.choice(filled)
                    content[chance.choice(sorted(content))] = Target("10.66.6.6", 66)
            case 8:
                kernel.containers["stray"] = ("set", "type ipv4_addr")
                kernel.elements["stray"] = {}


@settings(max_examples=150, deadline=None)
@given(STEPS, st.randoms(use_true_random=False))
def test_table_that_somebody_tampered_with_is_corrected(steps: list[Step], chance: random.Random) -> None:
    earlier = started()
    for step in steps:
        take(earlier, step)
    kernel = earlier.kernel.copy()
    _vandalise(kernel, chance)
    table = Table(earlier.cluster)
    table.kernel = kernel
    table.state = diff.TableState(kernel.found(), earlier.cluster.renderer)
    for piece in table.state.correct(dict(sorted(earlier.cluster.plans.items())), table.now, earlier.cluster.base):
        kernel.apply(piece)
    table.check_mirror()
    settle(table)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.booleans())
def test_foreign_table_is_replaced_in_one_transaction(steps: list[Step], occupied: bool) -> None:
    cluster = Cluster()
    for step in steps:
        if isinstance(step, list):
            cluster.set(step)
    table = Table(cluster)
    if occupied:
        table.kernel.apply(Piece([AddContainer("", "map", SERVICE_IPS, "type other : verdict")]))
    piece = table.state.replace(cluster.plans, table.now, cluster.base)
    assert table.apply([piece]) == 1
    assert table.state.next_tidy() is None
    settle(table)
