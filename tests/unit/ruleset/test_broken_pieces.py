"""A group that is too long for one message is broken as a last resort."""

import pytest

from nodeproxy.ruleset.operations import AddChain, AddRule, FlushChain, Operation, Piece, RemoveChain, Rule


def chain(number: int) -> AddChain:
    return AddChain("o", f"a/{number}")


def broken_up(piece: Piece) -> list[Piece]:
    """What is left when nothing can be cut any more."""
    parts = piece.halves() or piece.broken()
    return [leaf for part in parts for leaf in broken_up(part)] if parts else [piece]


@pytest.mark.parametrize("size", [2, 3, 7, 64])
def test_group_is_broken_down_to_single_operations_in_order(size: int) -> None:
    group: list[Operation] = [chain(number) for number in range(size)]
    leaves = broken_up(Piece(switch=[group]))
    assert [leaf.operations() for leaf in leaves] == [[operation] for operation in group]


def test_broken_group_keeps_the_order_of_a_transaction() -> None:
    """As a whole it would have defined before it referred, and removed last; so must its parts."""
    rule = AddRule("o", "a/1", Rule("drop", "", "d"))
    group: list[Operation] = [RemoveChain("o", "a/2"), rule, FlushChain("o", "a/1"), chain(1)]
    leaves = broken_up(Piece(switch=[group]))
    assert [leaf.operations() for leaf in leaves] == [[chain(1)], [FlushChain("o", "a/1")], [rule], [group[0]]]


def test_single_operation_is_not_broken() -> None:
    assert Piece(switch=[[chain(1)]]).broken() is None
    assert Piece(prepare=[chain(1)]).broken() is None
    assert Piece().broken() is None


def test_groups_are_cut_apart_before_one_is_broken() -> None:
    """Whoever can be served without a gap is."""
    one: list[Operation] = [chain(1), chain(2)]
    other: list[Operation] = [chain(3)]
    assert Piece(switch=[one, other]).halves() == (Piece(switch=[one]), Piece(switch=[other]))
    assert Piece([chain(0)], [one]).halves() == (Piece([chain(0)]), Piece(switch=[one]))
    assert Piece(switch=[one]).halves() is None
