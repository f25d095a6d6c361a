"""Compares what became of a cell's packets with what is expected."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from netns import probe
from netns.addresses import Family
from netns.matrix import expectation
from netns.matrix.cells import Cell
from netns.matrix.expectation import Expectation, Seen, Served, Untouched, expect
from netns.matrix.ground import node_address_towards
from netns.probe import Answer, Outcome

ASKS = 10
"""How often a cell is asked whose Service has several endpoints: one that has no right to answer shows itself."""


class Verdict(Enum):
    """How a cell stands."""

    RIGHT = "right"
    UNSURE = "unsure"
    """Not as expected, but a slow machine, or chance, may explain it: worth to be asked again."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and, unless it is ``RIGHT``, a sentence that says why."""

    verdict: Verdict
    why: str = ""


RIGHT = Judgement(Verdict.RIGHT)


def asks(cell: Cell, times: int = 1) -> int:
    """How many packets a cell takes; ``times`` as many as usual where there is a choice of endpoints."""
    choice = len(cell.shape.state.backends) > 1 and isinstance(expect(cell), Served)
    return ASKS * times if choice else 1


def judge(cell: Cell, outcomes: Sequence[Outcome], expected: Expectation | None = None) -> Judgement:
    """Compare the outcomes of a cell's packets with what is expected (by default, what the oracle says)."""
    expected = expect(cell) if expected is None else expected
    if not outcomes:
        return Judgement(Verdict.WRONG, "it was never asked")
    match expected:
        case Served(by):
            return _judge_answers(cell.family, outcomes, by)
        case Untouched(by):
            return _judge_answers(cell.family, outcomes, {by: Seen.CLIENT})
        case expectation.Rejected():
            return _judge_failures(outcomes, probe.Rejected)
        case expectation.Dropped():
            return _judge_failures(outcomes, probe.Dropped)


def _judge_failures(outcomes: Sequence[Outcome], kind: type[Outcome]) -> Judgement:
    others = [outcome for outcome in outcomes if not isinstance(outcome, kind)]
    if not others:
        return RIGHT
    why = f"expected {kind.__name__}, got {_summary(others)}"
    return Judgement(_doubt(others), why)


def _judge_answers(family: Family, outcomes: Sequence[Outcome], by: dict[str, Seen]) -> Judgement:
    wanted = ", ".join(f"{name} (sees {seen.value})" for name, seen in sorted(by.items()))
    silent = [outcome for outcome in outcomes if not isinstance(outcome, Answer)]
    answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    if strange := [answer for answer in answers if answer.name not in by]:
        return Judgement(Verdict.WRONG, f"expected {wanted}, got {_summary(strange)}")
    if masked := [answer for answer in answers if not _address_is(family, answer, by[answer.name])]:
        return Judgement(Verdict.WRONG, f"expected {wanted}, got {_summary(masked)}")
    if silent:
        return Judgement(_doubt(silent), f"expected {wanted}, got {_summary(silent)}")
    if missing := set(by) - {answer.name for answer in answers}:
        return Judgement(Verdict.UNSURE, f"expected {wanted}; {', '.join(sorted(missing))} never answered")
    if odd := [answer for answer in answers if not _port_is(family, answer, by[answer.name])]:
        return Judgement(Verdict.UNSURE, f"expected {wanted}, and by its port got {_summary(odd)}")
    return RIGHT


def _address_is(family: Family, answer: Answer, seen: Seen) -> bool:
    expected = answer.client if seen is Seen.CLIENT else node_address_towards(answer.name, family)
    return answer.source == expected


def _port_is(family: Family, answer: Answer, seen: Seen) -> bool:
    """Whether the port fits, where the node's address is the client's own and so the address tells nothing.

    Masquerading draws a new port, which is the old one once in about 64,000 times; without it the port stays, unless
    another flow to the same endpoint has it.
    """
    if answer.client != node_address_towards(answer.name, family):
        return True
    return (answer.source_port == answer.client_port) == (seen is Seen.CLIENT)


def _doubt(outcomes: Sequence[Outcome]) -> Verdict:
    """Silence, or a neighbour that was not found in time, may be a slow machine's fault; an answer never is."""
    slow = all(isinstance(outcome, probe.Dropped | probe.Unreachable) for outcome in outcomes)
    return Verdict.UNSURE if slow else Verdict.WRONG


def _summary(outcomes: Sequence[Outcome]) -> str:
    texts: Counter[str] = Counter()
    for outcome in outcomes:
        if isinstance(outcome, Answer):
            texts[f"{outcome.name} that sees {outcome.source}, of a client with {outcome.client}"] += 1
        else:
            texts[str(outcome)] += 1
    return "; ".join(f"{count} times {text}" for text, count in texts.items())
