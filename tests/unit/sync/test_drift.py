"""When a table is looked at because of others: at once, then after pauses, and what is said about it."""

from collections.abc import Sequence

import pytest

from nodeproxy.kernel.watch import Disturbance
from nodeproxy.kube.addresses import Family
from nodeproxy.report.journal import SyncResult
from nodeproxy.sync.drift import LONGEST_PAUSE, QUIET, Drift, chains_of

from .support import FakeClock, SilentJournal

V4, V6 = Family.IPV4, Family.IPV6


class Journal(SilentJournal):
    def __init__(self) -> None:
        super().__init__()
        self.heals: list[tuple[SyncResult, Sequence[Disturbance]]] = []

    def drift(self, result: SyncResult, disturbances: Sequence[Disturbance]) -> None:
        self.heals.append((result, disturbances))


class Case:
    def __init__(self) -> None:
        self.clock, self.journal = FakeClock(), Journal()
        self.drift = Drift(self.clock, self.journal)

    def hear(self, family: Family = V4, program: str = "nft", transactions: int = 1) -> None:
        self.drift.heard([Disturbance(family, program, transactions)])

    def wait(self) -> float:
        """Let time pass until a table is due; how long that took."""
        due = self.drift.due()
        assert due is not None
        waited = max(0.0, due - self.clock.time)
        self.clock.time += waited
        return waited

    def look(self, found: str = "a rule is gone", seconds: float = 0.01) -> list[Family]:
        """Look at the tables that are due; ``found``: what turns out to differ."""
        due = self.drift.take()
        for family, disturbances in due.items():
            result = SyncResult(family, True, 1, (), 1 if found else 0, seconds, drift=found)
            self.drift.done(family, disturbances, result)
        return [*due]

    @property
    def said(self) -> list[str]:
        return [event for event, _ in self.journal.warned]


@pytest.fixture
def case() -> Case:
    return Case()


def test_nothing_is_due_while_nobody_changes_anything(case: Case) -> None:
    assert case.drift.due() is None
    assert case.look() == []


def test_a_first_change_is_looked_at_at_once(case: Case) -> None:
    case.hear()
    assert case.wait() == 0.0
    assert case.look() == [V4]
    assert case.drift.due() is None


def test_further_changes_are_corrected_after_pauses_that_double_up_to_a_minute(case: Case) -> None:
    waits = []
    for _ in range(9):
        case.hear()
        waits.append(case.wait())
        case.look()
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert waits[-1] == LONGEST_PAUSE


def test_a_pause_counts_from_the_correction_whatever_comes_meanwhile(case: Case) -> None:
    case.hear()
    case.look()
    case.clock.time += 0.4
    case.hear()
    case.hear()
    assert case.look() == [], "too early"
    assert case.wait() == pytest.approx(0.6)
    assert case.look() == [V4]


def test_after_quiet_a_change_is_corrected_at_once_again(case: Case) -> None:
    for _ in range(4):
        case.hear()
        case.wait()
        case.look()
    case.clock.time += 8.0 + QUIET + 1
    case.hear()
    assert case.wait() == 0.0
    case.look()
    case.hear()
    assert case.wait() == 1.0


@pytest.mark.parametrize("seconds", [1.1, 5.0, 30.0])
def test_changes_that_do_not_follow_within_a_second_are_corrected_at_once_each_time(case: Case, seconds: float) -> None:
    for _ in range(20):
        case.hear()
        assert case.wait() == 0.0
        case.look()
        case.clock.time += seconds
    assert case.said == []


def test_a_change_after_a_pause_is_over_is_corrected_at_once_and_the_next_pause_is_short(case: Case) -> None:
    for _ in range(5):
        case.hear()
        case.wait()
        case.look()
    case.clock.time += 16.1
    case.hear()
    assert case.wait() == 0.0
    case.look()
    case.hear()
    assert case.wait() == 1.0


def test_a_program_that_keeps_changing_is_reported_once_when_it_starts_and_once_when_it_ends(case: Case) -> None:
    for _ in range(7):
        case.hear(program="firewalld")
        case.wait()
        case.look()
    assert case.said == ["another program keeps changing the table"]
    assert case.journal.warned[0][1]["program"] == "firewalld"
    assert case.journal.warned[0][1]["family"] == "IPv4"
    due = case.drift.settle_due()
    assert due is not None
    case.clock.time = due - 0.1
    case.drift.settle()
    assert len(case.said) == 1
    case.clock.time = due
    case.drift.settle()
    assert case.said[1:] == ["no other program changes the table any more"]
    assert case.drift.settle_due() is None
    case.drift.settle()
    assert len(case.said) == 2


def test_a_change_made_in_a_few_steps_is_nothing_to_write_about(case: Case) -> None:
    for _ in range(3):
        case.hear()
        case.wait()
        case.look()
    assert case.said == []
    assert case.drift.settle_due() is None


def test_an_end_is_not_waited_for_while_something_is_still_to_be_looked_at(case: Case) -> None:
    for _ in range(6):
        case.hear()
        case.wait()
        case.look()
    case.hear()
    assert case.drift.settle_due() is None
    case.clock.time += 500
    case.drift.settle()
    assert case.look() == [V4]
    assert case.drift.settle_due() is not None


def test_families_are_corrected_independently(case: Case) -> None:
    for _ in range(5):
        case.hear(V4)
        case.wait()
        case.look()
    case.hear(V4)
    case.hear(V6)
    assert case.drift.due() is not None
    assert case.look() == [V6]
    assert case.wait() == 16.0
    assert case.look() == [V4]


def test_harmless_changes_are_looked_at_for_a_tenth_of_the_time_at_most(case: Case) -> None:
    waits = []
    for _ in range(5):
        case.hear()
        waits.append(case.wait())
        case.look(found="", seconds=0.2)
    assert waits == pytest.approx([0.0, 2.0, 2.0, 2.0, 2.0])
    assert case.said == []


def test_harmless_changes_do_not_delay_a_correction_by_much(case: Case) -> None:
    case.hear()
    case.look(found="", seconds=0.02)
    case.hear()
    assert case.wait() == pytest.approx(0.2)


def test_a_failed_correction_is_followed_by_a_pause(case: Case) -> None:
    case.hear()
    disturbances = case.drift.take()[V4]
    case.drift.done(V4, disturbances, None)
    assert case.journal.heals == []
    case.hear()
    assert case.wait() == 1.0


def test_a_correction_that_succeeds_only_later_is_still_put_down_to_who_made_it_necessary(case: Case) -> None:
    case.hear(program="firewalld")
    case.drift.done(V4, case.drift.take()[V4], None)
    result = SyncResult(V4, True, 1, (), 1, 0.1, drift="it was not looked into")
    case.drift.done(V4, [], result)
    assert [[cause.program for cause in causes] for _, causes in case.journal.heals] == [["firewalld"]]
    assert dict(case.drift.counts) == {(V4, "firewalld"): 1}
    case.drift.done(V4, [], SyncResult(V4, True, 1, (), 0, 0.1))
    assert len(case.journal.heals) == 1


def test_changes_are_counted_by_family_and_program(case: Case) -> None:
    case.hear(V4, "nft", 3)
    case.hear(V4, "nft")
    case.hear(V6, "nft", 2)
    case.hear(V4, "firewalld")
    assert dict(case.drift.counts) == {(V4, "nft"): 4, (V6, "nft"): 2, (V4, "firewalld"): 1}


def test_what_an_audit_finds_is_counted_as_unknown_and_reported(case: Case) -> None:
    case.drift.done(V4, [], SyncResult(V4, True, 1, (), 1, 0.1, drift="a chain is gone"))
    assert dict(case.drift.counts) == {(V4, ""): 1}
    assert len(case.journal.heals) == 1


def test_an_audit_that_finds_nothing_is_not_reported(case: Case) -> None:
    case.drift.done(V4, [], SyncResult(V4, True, 1, (), 0, 0.1))
    assert not case.drift.counts
    assert case.journal.heals == []


def test_names_of_programs_do_not_pile_up(case: Case) -> None:
    for number in range(1000):
        case.hear(program=f"p{number}")
    assert len(case.drift.counts) < 100
    assert sum(case.drift.counts.values()) == 1000


def test_changes_do_not_pile_up_while_nobody_looks(case: Case) -> None:
    case.hear()
    case.look()
    for number in range(500):
        case.drift.heard([Disturbance(V4, "nft", 1, frozenset({f"c{number % 7}"})), Disturbance(V4, f"p{number}")])
    case.wait()
    found = case.drift.take()[V4]
    assert len(found) < 100
    assert sum(disturbance.transactions for disturbance in found) == 1000
    assert found[0].chains == {f"c{number}" for number in range(7)}


def test_the_chains_of_several_changes_are_taken_together() -> None:
    changes = [Disturbance(V4, "a", 1, frozenset({"x"})), Disturbance(V4, "b", 1, None), Disturbance(V4, "", 1)]
    assert chains_of(changes) == {"x"}
    assert chains_of([]) == frozenset()
