"""What becomes of a flow: which endpoints it reaches and whom they see, or how it fails."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cluster.differential.ground import ORIGINS, Ground
from cluster.differential.questions import Question
from netns.matrix.sctp import probe_sctp
from netns.probe import Answer, Dropped, Flow, Outcome, Refused, Rejected, Unreachable, probe

TIMEOUT, LONG_TIMEOUT = 0.5, 2.5
"""Seconds without an answer that count as dropped: at first, and when a difference is looked at again."""
FIRST_TRIES = 3
"""How many connections tell whether a flow is answered at all."""
_AT_ONCE, _AT_ONCE_IN_VAIN = 150, 600
_STICKY, _LONE = 2, 4
"""How many connections in a row a client with affinity makes, and how many the only one."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a flow. Equal fates are the same to whoever sent it.

    Attributes:
        reached: the endpoints that answered (``pod-b1:8080``), each with whom it saw: an address, or "itself" for the
            one who dialled, with "another port" where only that was changed.
        failures: how it failed, if it ever did.
        loyal: with session affinity: whether each client stayed with its endpoint; None: there is none, or nobody
            answered.
    """

    reached: frozenset[tuple[str, str]] = frozenset()
    failures: frozenset[str] = frozenset()
    loyal: bool | None = None

    def __str__(self) -> str:
        parts = []
        by_view: dict[str, list[str]] = defaultdict(list)
        for endpoint, seen in sorted(self.reached):
            by_view[seen].append(endpoint)
        for seen, endpoints in by_view.items():
            parts.append(f"{', '.join(endpoints)} (seeing {seen})")
        parts += sorted(self.failures)
        if self.loyal is False:
            parts.append("although there is session affinity, a client changes its endpoint")
        return "; ".join(parts) or "nothing was tried"


Fates = dict[Question, Fate]


def fate(outcomes: Iterable[Sequence[Outcome]]) -> Fate:
    """Sum up what became of a flow's connections: in groups, each of one client's in a row."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    failures = set()
    loyal: bool | None = None
    for group in outcomes:
        names = [outcome.name for outcome in group if isinstance(outcome, Answer)]
        if len(names) > 1:
            loyal = loyal is not False and len(set(names)) == 1
        for outcome in group:
            if isinstance(outcome, Answer):
                seen[outcome.name][_view(outcome)] += 1
            else:
                failures.add(_failure(outcome))
    reached = {(name, view) for name, views in seen.items() for view in _likely(views)}
    return Fate(frozenset(reached), frozenset(failures), loyal)


def same(question: Question, one: Fate, other: Fate) -> bool:
    """Whether two fates are the same as far as chance lets them be."""
    if not question.lone:
        return one == other
    # Which endpoint a single client with affinity gets is chance, and so whether that is one it can reach.
    if one.loyal != other.loyal and None not in {one.loyal, other.loyal}:
        return False
    if bool(one.reached) != bool(other.reached):
        return False
    views, others = dict(one.reached), dict(other.reached)
    return all(views[name] == others[name] for name in views.keys() & others.keys())


def _view(answer: Answer) -> str:
    if answer.source != answer.client:
        return answer.source
    return "itself" if answer.source_port == answer.client_port else "itself at another port"


def _likely(views: Counter[str]) -> Iterable[str]:
    """Whom an endpoint saw: of the two views that only differ by the port, the usual one.

    Masquerading draws a port that may be the old one; and a port that is taken is changed without it. Both are rare.
    """
    own = {view: count for view, count in views.items() if view.startswith("itself")}
    others = [view for view in views if view not in own]
    return [*others, *([max(own, key=lambda view: own[view])] if own else [])]


def _failure(outcome: Outcome) -> str:
    match outcome:
        case Rejected(by):
            return f"rejected (port unreachable) by {by}" if by else "rejected (port unreachable)"
        case Refused():
            return "refused (TCP reset)"
        case Unreachable():
            return "no route"
        case Dropped():
            return "dropped"
        case Answer():
            raise ValueError(outcome)


class Asker:
    """Sends the flows of questions in one network.

    Args:
        ground: the network.
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def first(self, questions: Iterable[Question], tries: int = FIRST_TRIES, timeout: float = TIMEOUT) -> Fates:
        """What a few connections each show; many at once, since some wait in vain."""
        return self._ask({question: self._single(question, tries) for question in questions}, timeout, _AT_ONCE_IN_VAIN)

    def thoroughly(self, questions: Iterable[Question], *, timeout: float = TIMEOUT, times: int = 1) -> Fates:
        """What as many connections show as find every endpoint, or several times as many."""
        return self._ask({question: self._every(question, times) for question in questions}, timeout, _AT_ONCE)

    def _single(self, question: Question, tries: int) -> list[list[Flow]]:
        return [[self._flow(question, question.source)] for _ in range(tries)]

    def _every(self, question: Question, times: int) -> list[list[Flow]]:
        if not question.sticky:
            return self._single(question, question.tries * times)
        if question.lone:
            return [[self._flow(question, question.source)] * _LONE]
        origin = ORIGINS[question.origin]
        clients = [origin.alias(question.family, question.first_client + number) for number in range(question.tries)]
        return [[self._flow(question, client)] * _STICKY for client in clients]

    def _flow(self, question: Question, source: str | None) -> Flow:
        host = self._ground.host(ORIGINS[question.origin].host)
        return Flow(host.namespace, question.address, question.port, question.protocol, source)

    def _ask(self, groups: Mapping[Question, list[list[Flow]]], timeout: float, at_once: int) -> Fates:
        found: dict[Question, list[list[Outcome]]] = {
            question: [[] for _ in parts] for question, parts in groups.items()
        }
        longest = max((len(group) for parts in groups.values() for group in parts), default=0)
        # A client's next connection comes when the one before it is known to have been.
        for turn in range(longest):
            due = [
                (outcomes, group[turn])
                for question, parts in groups.items()
                for outcomes, group in zip(found[question], parts, strict=True)
                if turn < len(group)
            ]
            for prober, some in (
                (probe, [one for one in due if one[1].protocol != "SCTP"]),
                (probe_sctp, [one for one in due if one[1].protocol == "SCTP"]),
            ):
                for (outcomes, _), outcome in zip(
                    some, prober([flow for _, flow in some], timeout, at_once), strict=True
                ):
                    outcomes.append(outcome)
        return {question: fate(outcomes) for question, outcomes in found.items()}
