"""The account of slots: what a table was found with is used again, freed at once, or freed after a while."""

import pytest

from nodeproxy.ruleset.mirror import Found, Mirror, SlotUse
from nodeproxy.ruleset.rules import BalancingChain, Target
from nodeproxy.ruleset.slot_ledger import LONG_AGO, Drawn, SlotLedger
from nodeproxy.ruleset.slots import SlotRange

TCP = "endpoints-tcp-"


def targets(count: int, start: int = 1) -> tuple[Target, ...]:
    return tuple(Target(f"10.0.0.{start + number}", 80) for number in range(count))


def chain(name: str, *slots: Target) -> BalancingChain:
    return BalancingChain.of_targets(name, "tcp", slots)


def use(offset: int, size: int) -> SlotUse:
    return SlotUse(TCP, SlotRange(0, offset, size))


def found(content: dict[int, Target | str], uses: dict[str, SlotUse], capacity: int = 1024) -> Found:
    return Found(Mirror(), uses, {f"{TCP}0": content}, {f"{TCP}0": capacity})


def test_slots_that_hold_what_a_chain_wants_are_taken_as_they_are() -> None:
    ledger = SlotLedger()
    wanted = chain("service-A-n/a", *targets(3))
    adopted = ledger.adopt(found(dict(enumerate(targets(3))), {wanted.name: use(0, 3)}), [wanted], 50.0)
    assert adopted == {wanted.name: Drawn(wanted.name, use(0, 3))}
    assert ledger.retired_since() is None
    assert ledger.taken() == 3


def test_slots_may_hold_what_a_chain_wants_in_any_order() -> None:
    """They do where some of its endpoints were replaced by others."""
    ledger = SlotLedger()
    wanted = chain("service-A-n/a", *targets(3))
    first, second, third = targets(3)
    content: dict[int, Target | str] = {0: third, 1: first, 2: second}
    adopted = ledger.adopt(found(content, {wanted.name: use(0, 3)}), [wanted], 50.0)
    assert adopted == {wanted.name: Drawn(wanted.name, use(0, 3), (third, first, second))}


@pytest.mark.parametrize("content", [(0, 0, 1), (0, 1, 3), (0, 1)], ids=["one twice", "another", "one missing"])
def test_slots_that_hold_anything_else_are_not_taken(content: tuple[int, ...]) -> None:
    ledger = SlotLedger()
    every = targets(4)
    wanted = chain("service-A-n/a", *every[:3])
    held: dict[int, Target | str] = {slot: every[index] for slot, index in enumerate(content)}
    assert ledger.adopt(found(held, {wanted.name: use(0, 3)}), [wanted], 50.0) == {}


def test_filled_slots_that_no_chain_draws_from_may_be_emptied_at_once() -> None:
    """They remain where a transaction that filled them passed, and the one that was to use them did not."""
    ledger = SlotLedger()
    wanted = chain("service-A-n/a", *targets(2))
    content: dict[int, Target | str] = {**dict(enumerate(targets(2))), 2: Target("10.0.0.9", 1), 4: "x", 5: "y"}
    ledger.adopt(found(content, {wanted.name: use(0, 2)}), [wanted], 50.0)
    freed = ledger.free(LONG_AGO)
    assert freed.uses == (use(2, 1), use(4, 2))
    assert freed.maps == ()
    assert ledger.retired_since() is None
    assert ledger.take(chain("service-B-n/b", *targets(3)))[0] == use(2, 3), "and used again"


def test_slots_that_a_chain_still_draws_from_are_emptied_after_a_while() -> None:
    """A packet may be on its way through the chain's rule, which is about to change."""
    ledger = SlotLedger()
    old = chain("service-A-n/a", *targets(2))
    new = chain(old.name, *targets(2, start=7))
    ledger.adopt(found(dict(enumerate(targets(2))), {old.name: use(0, 2)}), [new], 50.0)
    assert ledger.free(LONG_AGO).uses == ()
    assert ledger.retired_since() == 50.0
    assert ledger.take(new)[0] == use(2, 2), "not those in use"
    assert ledger.free(49.9).uses == ()
    freed = ledger.free(50.0)
    assert freed.uses == (use(0, 2),)
    assert freed.oldest == 50.0


def test_map_of_idle_slots_only_is_deleted_as_a_whole() -> None:
    ledger = SlotLedger()
    ledger.adopt(found(dict(enumerate(targets(3))), {}), [], 50.0)
    freed = ledger.free(LONG_AGO)
    assert (freed.uses, freed.maps) == ((), (f"{TCP}0",))
    assert ledger.taken() == 0


def test_slots_behind_the_end_of_a_map_are_emptied_at_once_and_never_used() -> None:
    """nft lets anyone put an element of any number into a map."""
    ledger = SlotLedger()
    wanted = chain("service-A-n/a", *targets(2))
    content: dict[int, Target | str] = {**dict(enumerate(targets(2))), 7: Target("10.0.0.9", 1)}
    ledger.adopt(found(content, {wanted.name: use(0, 2)}, capacity=4), [wanted], 50.0)
    assert ledger.free(LONG_AGO).uses == (use(7, 1),)
    assert ledger.free(LONG_AGO).uses == (), "once only"
    assert ledger.taken() == 2
    assert ledger.take(chain("service-B-n/b", *targets(3)))[0].slots.number == 1, "there is room for two only"


def test_time_counts_from_when_a_change_was_applied_and_for_that_change_only() -> None:
    ledger = SlotLedger()
    first, second = (ledger.take(chain(f"service-{name}-n/a", *targets(2)))[0] for name in "AB")
    ledger.retire([first], 40.0)
    ledger.retire([second], 50.0)
    ledger.settle(50.0, 65.0)
    assert ledger.retired_since() == 40.0
    assert ledger.free(64.9).uses == (first,)
    assert ledger.retired_since() == 65.0
    assert ledger.free(65.0).oldest == 65.0
