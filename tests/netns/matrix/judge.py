"""Compares what became of a cell's packets with what is expected."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from netns import probe
from netns.addresses import Family
from netns.matrix import expectation
from netns.matrix.axes import Source
from netns.matrix.cells import Cell
from netns.matrix.expectation import Expectation, Seen, Served, Untouched, expect, is_node
from netns.matrix.ground import destination, node_address_towards, node_addresses
from netns.probe import Answer, Outcome

ASKS = 10
"""How often a cell is asked whose Service has several endpoints: one that has no right to answer shows itself."""
BLIND_ASKS = 3
"""How often a cell is asked where only the port tells whether a packet was masqueraded."""


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
    expected = expect(cell)
    if not isinstance(expected, Served):
        return 1
    if len(cell.shape.state.backends) > 1:
        return ASKS * times
    blind = any(_address_is_blind(cell.source, name) for name in expected.by)
    return BLIND_ASKS * times if blind else 1


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
            return _judge_rejections(cell, outcomes)
        case expectation.Dropped():
            return _judge_failures(outcomes, probe.Dropped)


def _judge_rejections(cell: Cell, outcomes: Sequence[Outcome]) -> Judgement:
    # From outside of the node, an error comes from an address of it: were it an endpoint's, nothing was rejected.
    rejecting = {*node_addresses(cell.family), destination(cell)[0]}
    for outcome in outcomes:
        if isinstance(outcome, probe.Rejected) and outcome.by not in rejecting and not is_node(cell.source):
            return Judgement(Verdict.WRONG, f"expected Rejected by the node, got {outcome}")
    return _judge_failures(outcomes, probe.Rejected)


def _judge_failures(outcomes: Sequence[Outcome], kind: type[Outcome]) -> Judgement:
    others = [outcome for outcome in outcomes if not isinstance(outcome, kind)]
    if not others:
        return RIGHT
    why = f"expected {kind.__name__}, got {_summary(others)}"
    return Judgement(_doubt(others), why)


def _judge_answers(family: Family, outcomes: Sequence[Outcome], by: Mapping[str, Seen]) -> Judgement:
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
    return _judge_ports(family, answers, by)


def _address_is(family: Family, answer: Answer, seen: Seen) -> bool:
    expected = answer.client if seen is Seen.CLIENT else node_address_towards(answer.name, family)
    return answer.source == expected


def _judge_ports(family: Family, answers: Sequence[Answer], by: Mapping[str, Seen]) -> Judgement:
    """Look at the ports where the node's address is the client's own, so that the address tells nothing.

    Masquerading draws a new port, which is the old one once in about 64,000 times. Without it the port stays, unless
    another flow to the same endpoint has it; that is rare too, and does not happen again and again.
    """
    for name, seen in by.items():
        blind = [a for a in answers if a.name == name and a.client == node_address_towards(name, family)]
        kept = [answer for answer in blind if answer.source_port == answer.client_port]
        if blind and (kept if seen is Seen.NODE else not kept):
            what = "the port was kept" if kept else "the port was never kept"
            return Judgement(Verdict.UNSURE, f"expected {name} (sees {seen.value}); {what}")
    return RIGHT


def _address_is_blind(source: Source, name: str) -> bool:
    """Whether masquerading changes no address."""
    return source is Source.NODE and not name.startswith("pod-a")


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
