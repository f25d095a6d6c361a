"""Single changes of a table: what is touched, when it is deleted, and what moves without a gap."""

from collections.abc import Iterator

import pytest

from nodeproxy.ruleset import diff
from nodeproxy.ruleset.operations import (
    AddContainer,
    AddElement,
    AddRule,
    FillSlots,
    FlushChain,
    FreeSlots,
    RemoveChain,
    RemoveElement,
    Rule,
    weight,
)
from nodeproxy.ruleset.rules import CLUSTER_IPS, HAIRPIN, SERVICE_IPS, Element, Target
from unit.ruleset.build import name
from unit.ruleset.cluster import Cluster, Shape, Table, leaves, settle, started


@pytest.fixture
def small_pieces() -> Iterator[None]:
    """Cut changes into many transactions, as only thousands of services would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diff, "PIECE_WEIGHT", 8)
        yield


def operations(table: Table, *shapes: Shape | int) -> list[object]:
    """The operations of a change, applied."""
    pieces = list(table.state.change(table.cluster.set(shapes), table.now, table.cluster.base))
    table.apply(pieces)
    return [operation for piece in pieces for operation in piece.operations()]


def test_change_of_one_service_touches_nothing_of_another() -> None:
    table = started(Shape(1, (1, 2)), Shape(2, (1, 2)))
    found = operations(table, Shape(1, (1, 2, 3)))
    assert {operation.owner for operation in found} == {"ns/svc1:p80"}  # type: ignore[attr-defined]
    by_kind = [type(operation) for operation in found]
    assert by_kind == [FillSlots, FlushChain, AddRule, AddElement]
    [filled] = [operation for operation in found if isinstance(operation, FillSlots)]
    assert (filled.map_name, filled.offset, len(filled.values)) == ("endpoints-tcp-0", 4, 3)
    [added] = [operation for operation in found if isinstance(operation, AddElement)]
    assert added.element.container == HAIRPIN


def test_no_change_no_transaction() -> None:
    table = started(Shape(1, (1, 2)))
    assert table.change({}) == 0
    assert table.change(dict(table.cluster.plans)) == 0


def test_slots_in_use_are_never_overwritten_but_freed_after_a_while() -> None:
    """A packet that has drawn its number finds the slot as it was."""
    table = started(Shape(1, (1, 2)))
    table.change(table.cluster.set([Shape(1, (3, 4, 5))]))
    assert len(table.kernel.slots["endpoints-tcp-0"]) == 5
    table.tidy(0.5)
    assert len(table.kernel.slots["endpoints-tcp-0"]) == 5
    table.tidy(0.6)
    assert sorted(table.kernel.slots["endpoints-tcp-0"]) == [2, 3, 4]


def test_as_many_new_endpoints_as_old_ones_take_their_slots_and_the_rule_stays() -> None:
    """The kernel goes through the whole table for a new rule, but not for other targets in the slots of an old one."""
    table = started(Shape(1, (1, 2, 3, 4)))
    found = operations(table, Shape(1, (2, 3, 8, 9)))
    assert not [operation for operation in found if isinstance(operation, AddRule | FlushChain)]
    freed = [(operation.offset, operation.size) for operation in found if isinstance(operation, FreeSlots)]
    filled = [(operation.offset, len(operation.values)) for operation in found if isinstance(operation, FillSlots)]
    assert freed == filled == [(0, 1), (3, 1)]
    content = table.kernel.slots["endpoints-tcp-0"]
    assert [content[slot].address for slot in range(4)] == ["10.0.0.8", "10.0.0.2", "10.0.0.3", "10.0.0.9"]  # type: ignore[union-attr]
    settle(table)


def test_replaced_endpoints_are_replaced_again_from_where_they_really_are() -> None:
    """Slots no longer have the order of the endpoints; another change, and a restart, know which one is where."""
    table = started(Shape(1, (1, 2, 3, 4)))
    for step in ((2, 3, 4, 5), (1, 3, 4, 5), (3, 4, 6, 7)):
        table.change(table.cluster.set([Shape(1, step)]))
        assert table.state.next_tidy() is None
        settle(table)
    again = Table(table.cluster, table.kernel.copy())
    assert again.correct() == 0
    [filled] = [op for op in operations(again, Shape(1, (3, 4, 6, 9))) if isinstance(op, FillSlots)]
    assert len(filled.values) == 1
    settle(again)


@pytest.mark.parametrize(("count", "where_they_are"), [(100, True), (101, False)])
def test_many_new_endpoints_take_fresh_slots(count: int, where_they_are: bool) -> None:
    """What is replaced where it is has to fit into one transaction; a bigger change must be able to be cut."""
    table = started(Shape(1, tuple(range(1, count + 1))))
    found = operations(table, Shape(1, tuple(range(1001, count + 1001))))
    assert any(isinstance(operation, AddRule) for operation in found) is not where_they_are
    settle(table)


def test_last_service_with_several_endpoints_takes_the_slot_map_along() -> None:
    table = started(Shape(1, (1, 2)))
    table.change(table.cluster.set([Shape(1, (1,))]))
    table.tidy()
    assert table.kernel.slots == {}
    assert table.state.slots_taken() == 0


def test_chain_is_emptied_at_once_and_deleted_after_its_slots() -> None:
    table = started(Shape(1, (1, 2), affinity=60))
    assert len([chain for chain in table.kernel.chains if chain.startswith("endpoint-")]) == 2
    table.change(table.cluster.set([1]))
    leftover = [chain for chain in table.kernel.chains if "/" in chain]
    assert len(leftover) == 3
    assert not any(table.kernel.chains[chain] for chain in leftover)
    assert table.kernel.affinity() == {}
    # Both are due, but the slots that were just freed still may have named the chains.
    table.tidy(10)
    assert [chain for chain in table.kernel.chains if "/" in chain] == leftover
    table.tidy(1.1)
    assert [chain for chain in table.kernel.chains if "/" in chain] == []
    assert table.state.next_tidy() is None


def test_service_that_comes_back_within_the_delay_is_not_deleted() -> None:
    table = started(Shape(1, (1, 2), affinity=60))
    table.change(table.cluster.set([1]))
    table.tidy(0.5)
    table.change(table.cluster.set([Shape(1, (1, 2), affinity=60)]))
    table.tidy(10)
    table.tidy(10)
    settle(table)
    assert len([chain for chain in table.kernel.chains if "/" in chain]) == 3


def test_chains_are_deleted_in_time_while_slots_keep_changing() -> None:
    """A rolling update somewhere else frees slots each second; chains that are due must not wait for its end."""
    table = started(Shape(1, (1, 2), affinity=60), Shape(2, (1, 2)))
    table.change(table.cluster.set([1]))
    for second in range(8):
        table.change(table.cluster.set([Shape(2, (second + 1, second + 2))]))
        table.tidy(1.0)
    assert [chain for chain in table.kernel.chains if "svc1" in chain] == []


def test_affinity_that_is_switched_off_leaves_no_set() -> None:
    table = started(Shape(1, (1, 2), affinity=60))
    table.change(table.cluster.set([Shape(1, (1, 2))]))
    assert table.kernel.affinity() == {}
    table.change(table.cluster.set([Shape(1, (1, 2), affinity=5)]))
    assert set(table.kernel.affinity().values()) == {5}
    settle(table)


def test_another_timeout_redeclares_the_sets_and_leaves_the_chains_alone() -> None:
    table = started(Shape(1, (1, 2), affinity=10800))
    found = operations(table, Shape(1, (1, 2), affinity=5))
    assert [type(operation) for operation in found] == [AddContainer, AddContainer]
    assert set(table.kernel.affinity().values()) == {5}


def test_frontend_moves_to_another_service_in_one_transaction_without_a_gap() -> None:
    table = started(Shape(1, (1,), vip=1), Shape(2, (2,), vip=1))
    key = ("192.0.2.1", "tcp", 80)
    holder = table.kernel.elements[SERVICE_IPS][key]
    assert holder is not None
    assert "svc1" in holder
    found = operations(table, 1)
    assert "svc2" in str(table.kernel.elements[SERVICE_IPS][key])
    assert next(o for o in found if isinstance(o, RemoveElement) and o.key == key).owner == "ns/svc2:p80"
    settle(table)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("finely", [False, True])
def test_frontend_moves_without_a_gap_even_if_the_change_is_cut(finely: bool) -> None:
    """The element still leads to the old owner's chain until its new owner's transaction: it must not be empty."""
    table = started(Shape(1, (1, 2), vip=1), Shape(2, (2, 3), vip=1), Shape(3, (3,)))
    updates = table.cluster.set([1, Shape(3, (1, 2, 3))])
    assert table.change(updates, finely=finely) > 1
    settle(table)


def test_service_that_gives_up_one_frontend_to_another_and_all_external_traffic_with_it() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diff, "PIECE_WEIGHT", 1)
        table = started(Shape(1, (1,), vip=1), Shape(2, (2,), vip=1))
        table.change(table.cluster.set([Shape(1, (1,))]), finely=True)
        settle(table)


def test_shared_elements_stay_until_the_last_owner_leaves() -> None:
    """Two services have the same pod behind them."""
    table = started(Shape(1, (1,)), Shape(2, (1,)))
    key = ("10.0.0.1", "10.0.0.1", "tcp", 80)
    table.change(table.cluster.set([1]))
    assert key in table.kernel.elements[HAIRPIN]
    assert ("172.30.0.2",) not in table.kernel.elements[CLUSTER_IPS]
    table.change(table.cluster.set([2]))
    assert key not in table.kernel.elements[HAIRPIN]


def test_shared_element_passes_from_one_service_to_another_in_one_change() -> None:
    table = started(Shape(1, (1,)), Shape(2, (2,)))
    found = operations(table, Shape(1, (2,)), Shape(2, (1,)))
    assert not [o for o in found if isinstance(o, (AddElement, RemoveElement)) and o.container == HAIRPIN]


def test_first_big_sync_prepares_before_it_puts_into_force() -> None:
    """Bounded transactions: first the base, then what nothing refers to, then the elements that lead there."""
    cluster = Cluster()
    updates = cluster.set([Shape(number, tuple(range(1, 11))) for number in range(120)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diff, "PIECE_WEIGHT", 200)
        table = Table(cluster)
        pieces = list(table.state.change(updates, table.now, cluster.base))
    assert len(pieces) > 5
    heaviest = max(weight(operation) for piece in pieces for operation in [piece.operations()])
    assert heaviest <= 200 + 20
    switching = [bool(piece.switch) for piece in pieces[1:]]
    assert switching == sorted(switching)
    assert not any(piece.prepare for piece in pieces if piece.switch)
    table.apply(pieces)
    settle(table)


def test_strays_are_removed() -> None:
    table = started(Shape(1, (1, 2)))
    kernel = table.kernel.copy()
    kernel.chains["service-STRAY-x/y/tcp/z"] = [Rule("ip saddr @affinity-STRAY-x/y goto reject-chain", "", "?")]
    kernel.containers["affinity-STRAY-x/y"] = ("set", "flags dynamic,timeout ; timeout 5s")
    kernel.elements["affinity-STRAY-x/y"] = {}
    kernel.elements[SERVICE_IPS]["10.9.9.9", "tcp", 9] = "service-STRAY-x/y/tcp/z"
    kernel.containers["endpoints-tcp-7"] = ("map", "size 1024")
    kernel.slots["endpoints-tcp-7"] = {}
    kernel.containers["endpoints-udp-3"] = ("map", "size 1024")
    kernel.slots["endpoints-udp-3"] = {5: Target("10.1.1.1", 1), 6: Target("10.1.1.1", 2)}
    corrected = Table(table.cluster)
    corrected.kernel = kernel
    corrected.state = diff.TableState(kernel.found(), table.cluster.renderer)
    corrected.correct()
    assert ("10.9.9.9", "tcp", 9) not in kernel.elements[SERVICE_IPS]
    assert corrected.kernel.affinity() == {}
    assert "endpoints-tcp-7" not in corrected.kernel.containers
    settle(corrected)
    assert "endpoints-udp-3" not in corrected.kernel.containers
    assert corrected.kernel.fates() == table.kernel.fates()


def test_many_strays_are_removed_in_pieces() -> None:
    """A program that was away while thousands of services left must not need one huge transaction."""
    table = started(*(Shape(number, (1, 2), affinity=60) for number in range(60)))
    table.cluster.set(range(1, 60))
    again = Table(table.cluster, table.kernel.copy())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diff, "PIECE_WEIGHT", 50)
        pieces = list(again.state.correct(again.cluster.plans, again.now, again.cluster.base))
    assert max(weight(piece.operations()) for piece in pieces) <= 50
    parts = [part for piece in pieces for part in leaves(piece)]
    assert max(len(part.operations()) for part in parts) == 1
    again.apply(parts)
    settle(again)


def test_good_slots_are_adopted_where_they_are() -> None:
    """After a restart nothing is written, and more endpoints go elsewhere."""
    table = started(Shape(1, (1, 2)), Shape(2, (1, 2, 3)))
    again = Table(table.cluster, table.kernel.copy())
    assert again.correct() == 0
    assert again.state.slots_taken() == 5
    found = operations(again, Shape(1, (4, 5, 6)))
    [filled] = [operation for operation in found if isinstance(operation, FillSlots)]
    assert filled.offset == 5
    settle(again)


def test_adopted_slots_are_not_remembered_when_their_service_leaves_and_returns() -> None:
    table = started(Shape(1, (1, 2)))
    again = Table(table.cluster, table.kernel.copy())
    again.correct()
    again.change(again.cluster.set([1]))
    again.tidy()
    again.change(again.cluster.set([Shape(2, (7, 8)), Shape(1, (1, 2))]))
    settle(again)


def test_two_chains_found_on_the_same_slots_do_not_share_them() -> None:
    table = started(Shape(1, (1, 2)), Shape(2, (1, 2)))
    kernel = table.kernel.copy()
    chains = [chain for chain in kernel.chains if "/" in chain]
    kernel.chains[chains[1]] = list(kernel.chains[chains[0]])
    again = Table(table.cluster)
    again.kernel = kernel
    again.state = diff.TableState(kernel.found(), table.cluster.renderer)
    assert again.correct() > 0
    settle(again)


def test_placed_rules_can_be_asked_for() -> None:
    table = started(Shape(1, (1, 2)))
    assert table.state.placed(name("ns/svc1")) == table.cluster.plans[name("ns/svc1")]
    assert table.state.placed(name("ns/svc2")) is None


def test_element_with_another_verdict_is_removed_before_it_is_added() -> None:
    table = started(Shape(1, (), internal=True))
    found = operations(table, Shape(1, (1,), internal=True, remote=True))
    ours = [o for o in found if isinstance(o, (RemoveElement, AddElement)) and o.container == "no-endpoint-services"]
    assert ours == [
        RemoveElement("ns/svc1:p80", "no-endpoint-services", ("172.30.0.2", "tcp", 80)),
        AddElement("ns/svc1:p80", Element("no-endpoint-services", ("172.30.0.2", "tcp", 80), "drop", "ns/svc1:p80")),
    ]


def test_chain_that_something_refers_to_is_never_deleted() -> None:
    """Chains only go by tidying, and never in the transaction that takes them out of use."""
    table = started(Shape(1, (1, 2), affinity=60))
    found = operations(table, Shape(1, (2,), affinity=60))
    assert not [operation for operation in found if isinstance(operation, RemoveChain)]
