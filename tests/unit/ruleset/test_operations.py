"""Big changes are cut into pieces that keep their order and lose nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeproxy.ruleset.operations import (
    AddChain,
    AddContainer,
    AddElement,
    AddRule,
    FillSlots,
    FlushChain,
    FreeSlots,
    Operation,
    Piece,
    RemoveChain,
    RemoveContainer,
    RemoveElement,
    ReplaceTable,
    Rule,
    Stage,
    cut,
    fill_slots,
    free_slots,
    weight,
)
from nodeproxy.ruleset.rules import Element, Target
from unit.ruleset.cluster import leaves


def chain(number: int) -> Operation:
    return AddChain(f"s{number}", f"a/{number}")


def slots(number: int, size: int) -> Operation:
    return FillSlots(f"s{number}", "endpoints-tcp-0", 0, (Target("10.0.0.1", number + 1),) * size)


OPERATIONS = st.one_of(st.builds(chain, st.integers(0, 99)), st.builds(slots, st.integers(0, 99), st.integers(1, 30)))
PREPARES = st.lists(OPERATIONS, max_size=30)
SWITCHES = st.lists(st.lists(OPERATIONS, min_size=1, max_size=5), max_size=10)


@given(PREPARES, SWITCHES, st.integers(1, 60))
def test_pieces_together_are_the_whole_in_order(
    prepare: list[Operation], switch: list[list[Operation]], limit: int
) -> None:
    pieces = list(cut(prepare, switch, limit))
    assert [operation for piece in pieces for operation in piece.prepare] == prepare
    assert [group for piece in pieces for group in piece.switch] == switch
    assert all(piece.prepare or piece.switch for piece in pieces)
    if len(pieces) > 1:
        kinds = [bool(piece.switch) for piece in pieces]
        assert kinds == sorted(kinds), "all is prepared before anything is put into force"
        assert not any(piece.prepare and piece.switch for piece in pieces)


@given(PREPARES, SWITCHES, st.integers(1, 60))
def test_pieces_exceed_the_limit_by_no_more_than_their_last_part(
    prepare: list[Operation], switch: list[list[Operation]], limit: int
) -> None:
    for piece in cut(prepare, switch, limit):
        total = weight(piece.operations())
        last = weight([piece.prepare[-1]]) if piece.prepare and not piece.switch else weight(piece.switch[-1])
        assert total <= limit or total - last < limit


@given(PREPARES, SWITCHES)
def test_halves_together_are_the_whole_in_order(prepare: list[Operation], switch: list[list[Operation]]) -> None:
    parts = list(leaves(Piece(prepare, switch)))
    assert [operation for part in parts for operation in part.prepare] == prepare
    assert [group for part in parts for group in part.switch] == switch
    if prepare or switch:
        assert len(parts) == len(prepare) + len(switch)


def test_a_group_is_never_cut() -> None:
    assert Piece(switch=[[chain(1), chain(2)]]).halves() is None
    assert Piece(prepare=[chain(1)]).halves() is None
    assert Piece().halves() is None


def test_nothing_is_cut_into_no_pieces() -> None:
    assert list(cut([], [], 10)) == []


def test_what_fits_is_one_piece() -> None:
    pieces = list(cut([chain(1)], [[chain(2)], [chain(3)]], 3))
    assert pieces == [Piece([chain(1)], [[chain(2)], [chain(3)]])]


def test_transaction_defines_before_it_refers_and_removes_last() -> None:
    rule = Rule("drop", "", "d")
    unordered: list[Operation] = [
        RemoveContainer("", "set", "s"),
        RemoveChain("", "a/b"),
        FreeSlots("", "m", 0, 1),
        AddElement("", Element("service-ips", ("x",), "drop")),
        RemoveElement("", "service-ips", ("x",)),
        AddRule("", "a/b", rule),
        FlushChain("", "a/b"),
        FillSlots("", "m", 0, ("a/b",)),
        FreeSlots("", "m", 0, 1, Stage.EMPTY_SLOTS),
        AddChain("", "a/b"),
        AddContainer("", "set", "s", "type x"),
        ReplaceTable(),
    ]
    ordered = Piece(prepare=unordered[:5], switch=[unordered[5:]]).operations()
    assert ordered == list(reversed(unordered))
    assert [operation.stage for operation in ordered] == list(Stage)


def test_operations_of_one_stage_keep_their_order() -> None:
    rules = [AddRule("", "a/b", Rule(text, "", "")) for text in ("z", "a", "m")]
    assert Piece(prepare=list(rules)).operations() == rules


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (500, [500]), (501, [500, 1]), (1030, [500, 500, 30])])
def test_many_slots_are_filled_and_freed_by_several_operations(count: int, sizes: list[int]) -> None:
    """So that none is ever too big for a netlink message."""
    values = tuple(Target("10.0.0.1", number + 1) for number in range(count))
    filled = list(fill_slots("o", "m", 7, values))
    assert [operation.weight for operation in filled] == sizes
    assert tuple(value for operation in filled for value in operation.values) == values
    freed = list(free_slots("o", "m", 7, count))
    assert [operation.weight for operation in freed] == sizes
    assert [operation.offset for operation in filled] == [operation.offset for operation in freed]
    assert freed[-1].offset + freed[-1].size == 7 + count
