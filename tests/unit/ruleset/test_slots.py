"""Slots are handed out once, given back whole, and found fast."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nodeproxy.ruleset.slots import MAP_SLOTS, SlotPool, SlotRange


def test_slots_are_consecutive_and_start_in_a_new_map() -> None:
    pool = SlotPool()
    assert pool.allocate(10) == (SlotRange(0, 0, 10), True)
    assert pool.allocate(5) == (SlotRange(0, 10, 5), False)
    assert pool.taken() == 15
    assert pool.maps() == {0}
    assert pool.capacity(0) == MAP_SLOTS


def test_first_gap_that_is_long_enough_is_taken() -> None:
    pool = SlotPool()
    ranges = [pool.allocate(size)[0] for size in (4, 2, 4, 3, 4)]
    pool.release(ranges[1])  # a gap of 2 at 4
    pool.release(ranges[3])  # a gap of 3 at 10
    assert pool.allocate(3)[0] == SlotRange(0, 10, 3)
    assert pool.allocate(1)[0] == SlotRange(0, 4, 1)
    assert pool.allocate(1)[0] == SlotRange(0, 5, 1)
    assert pool.allocate(1)[0] == SlotRange(0, 17, 1)


def test_full_map_is_followed_by_another_one() -> None:
    pool = SlotPool()
    assert pool.allocate(MAP_SLOTS) == (SlotRange(0, 0, MAP_SLOTS), True)
    assert pool.allocate(1) == (SlotRange(1, 0, 1), True)
    assert pool.allocate(MAP_SLOTS - 1) == (SlotRange(1, 1, MAP_SLOTS - 1), False)


def test_more_than_a_map_holds_gets_a_map_of_its_own() -> None:
    pool = SlotPool()
    big, new = pool.allocate(MAP_SLOTS + 1)
    assert (big, new) == (SlotRange(0, 0, MAP_SLOTS + 1), True)
    assert pool.capacity(0) == MAP_SLOTS + 1
    assert pool.allocate(1) == (SlotRange(1, 0, 1), True)
    assert pool.release(big)
    assert pool.maps() == {1}


def test_empty_map_is_forgotten_and_its_number_not_used_again() -> None:
    """The kernel may still hold the old one until it is deleted."""
    pool = SlotPool()
    first, _ = pool.allocate(2)
    second, _ = pool.allocate(2)
    assert not pool.release(first)
    assert pool.release(second)
    assert pool.maps() == frozenset()
    assert pool.taken() == 0
    assert pool.allocate(2) == (SlotRange(1, 0, 2), True)


@pytest.mark.parametrize("size", [0, -1])
def test_no_slots_cannot_be_allocated(size: int) -> None:
    with pytest.raises(ValueError, match=f"cannot allocate {size} slots"):
        SlotPool().allocate(size)


def test_what_is_not_taken_cannot_be_released() -> None:
    pool = SlotPool()
    slots, _ = pool.allocate(4)
    for wrong in (SlotRange(0, 2, 4), SlotRange(1, 0, 1), SlotRange(0, 4, 1)):
        with pytest.raises(KeyError, match="is not taken"):
            pool.release(wrong)
    assert pool.taken() == 4
    assert pool.release(slots)
    with pytest.raises(KeyError, match="is not taken"):
        pool.release(slots)


def test_exact_slots_of_a_known_map_can_be_claimed_once() -> None:
    pool = SlotPool()
    assert not pool.claim(SlotRange(3, 0, 2))  # no such map
    pool.declare(3, 16)
    assert pool.claim(SlotRange(3, 4, 4))
    assert not pool.claim(SlotRange(3, 7, 2))
    assert not pool.claim(SlotRange(3, 15, 2))  # beyond its end
    assert pool.claim(SlotRange(3, 8, 8))
    assert pool.taken() == 12
    assert pool.allocate(4) == (SlotRange(3, 0, 4), False)
    assert pool.allocate(1) == (SlotRange(4, 0, 1), True)


def test_declared_map_in_which_nothing_is_taken_is_forgotten_on_demand() -> None:
    pool = SlotPool()
    pool.declare(0, 1024)
    pool.declare(5, 1024)
    pool.claim(SlotRange(5, 0, 1))
    assert pool.forget_empty() == [0]
    assert pool.maps() == {5}
    assert pool.forget_empty() == []


def test_growing_services_find_room_in_a_map_full_of_holes() -> None:
    """Fill a map with pairs, free every other one, and let the rest grow: holes of 2 serve pairs, not triples."""
    pool = SlotPool()
    pairs = [pool.allocate(2)[0] for _ in range(MAP_SLOTS // 2)]
    assert pool.maps() == {0}
    for pair in pairs[::2]:
        pool.release(pair)
    triples = [pool.allocate(3)[0] for _ in range(MAP_SLOTS // 4)]
    assert {slots.number for slots in triples} == {1}
    refilled = [pool.allocate(2)[0] for _ in range(MAP_SLOTS // 4)]
    # Newest map first (256 * 3 = 768 taken, 128 pairs fit), then every hole of the old one.
    assert [slots.number for slots in refilled].count(1) == 128
    assert [slots.number for slots in refilled].count(0) == 128
    assert pool.taken() == MAP_SLOTS // 4 * 2 + MAP_SLOTS // 4 * 3 + MAP_SLOTS // 4 * 2


def test_freed_neighbours_become_one_gap() -> None:
    pool = SlotPool()
    pairs = [pool.allocate(2)[0] for _ in range(MAP_SLOTS // 2)]
    assert pool.allocate(4)[0].number == 1  # the old map is found to have no gap of four
    pool.release(pairs[10])
    pool.release(pairs[11])
    pool.allocate(MAP_SLOTS - 4)  # the rest of the new map
    assert pool.allocate(4)[0] == SlotRange(0, 20, 4)


class _Pool(RuleBasedStateMachine):
    """A pool against a plain set of (map, slot) pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SlotPool()
        self.held: list[SlotRange] = []

    def _cells(self) -> list[tuple[int, int]]:
        return [(held.number, slot) for held in self.held for slot in range(held.offset, held.end)]

    @rule(
        size=st.one_of(
            st.integers(1, 40), st.integers(300, MAP_SLOTS), st.sampled_from([MAP_SLOTS + 1, MAP_SLOTS + 300])
        )
    )
    def allocate(self, size: int) -> None:
        before = self.pool.maps()
        slots, new = self.pool.allocate(size)
        assert slots.size == size
        assert new == (slots.number not in before)
        self.held.append(slots)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slots = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        emptied = self.pool.release(slots)
        assert emptied == (slots.number not in {held.number for held in self.held})

    @rule(number=st.integers(0, 4), offset=st.integers(0, 1100), size=st.integers(1, 30))
    def claim(self, number: int, offset: int, size: int) -> None:
        slots = SlotRange(number, offset, size)
        cells = set(self._cells())
        free = number in self.pool.maps() and offset + size <= self.pool.capacity(number)
        free = free and not any((number, slot) in cells for slot in range(offset, offset + size))
        assert self.pool.claim(slots) == free
        if free:
            self.held.append(slots)

    @invariant()
    def nothing_overlaps_or_leaks(self) -> None:
        cells = self._cells()
        assert len(cells) == len(set(cells))
        assert self.pool.taken() == len(cells)
        assert self.pool.maps() == {held.number for held in self.held}
        assert all(held.end <= self.pool.capacity(held.number) for held in self.held)


_Pool.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPool = _Pool.TestCase


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_released_in_any_order_everything_is_free_again(sizes: list[int], chance: random.Random) -> None:
    pool = SlotPool()
    ranges = [pool.allocate(size)[0] for size in sizes]
    chance.shuffle(ranges)
    emptied = sum(pool.release(slots) for slots in ranges)
    assert emptied == len({slots.number for slots in ranges})
    assert pool.taken() == 0
    assert pool.maps() == frozenset()


def test_ten_thousand_operations_are_fast() -> None:
    """About 5,000 service ports come, go and change size; seconds would hold up every sync."""
    chance = random.Random(7)  # noqa: S311 - a fixed course of events, nothing secret
    pool = SlotPool()
    held: list[SlotRange] = []
    start = time.process_time()
    for step in range(10_000):
        if held and (step > 5_000 or chance.random() < 0.3):
            at = chance.randrange(len(held))
            held[at], held[-1] = held[-1], held[at]
            pool.release(held.pop())
        else:
            held.append(pool.allocate(chance.choice([2, 2, 3, 10, 10, 50, 300]))[0])
    spent = time.process_time() - start
    assert pool.taken() == sum(slots.size for slots in held)
    assert spent < 3.0, f"{spent:.2f} s"
