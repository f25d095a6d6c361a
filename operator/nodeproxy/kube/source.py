"""The seam between where objects come from and what is done with them.

A source (a folder of manifests, the API server) runs on its own threads and tells a :class:`Sink` what is there:
first the initial state, kind by kind, each closed by :meth:`Sink.complete`; then changes. Changes are per object,
keyed, and level-based: the whole new object, or None when it is gone. Several changes that belong together (one
rename of a file, one relist) come as one batch and are synced together.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from nodeproxy.kube.objects import KubeObject


class ObjectKey(NamedTuple):
    """Names one object: kind, namespace (empty for cluster-scoped kinds) and name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """An object as it is now; ``object`` None: it is gone."""

    key: ObjectKey
    object: KubeObject | None


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Input that was left out, wholly or in part, or read unlike it was written.

    Attributes:
        origin: where it was read: ``path/file.yaml#2`` (document 2), or an API resource.
        subject: the object at fault, as ``Service ns/name``; empty if its key could not be read.
        field: path of the field, as ``spec.ports[1].port``; empty for the document as a whole.
        reason: what is wrong with it, with the value.
        fatal: the whole object (or file) was left out.
        harmless: nothing was left out; it was read unlike it was written.
        kept: what was known of the object (or file) before stays in force in its place. Two problems that differ in
            nothing else are the same one.
    """

    origin: str
    subject: str
    field: str
    reason: str
    fatal: bool = False
    harmless: bool = False
    kept: bool = dataclasses.field(default=False, compare=False)


_NUMBER = re.compile(r"([0-9]+)")


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Problems in the order of files and of what is in them: document 2 before document 10."""
    return sorted(problems, key=_place)


def _place(problem: Problem) -> tuple[object, ...]:
    origin, where = _by_number(problem.origin), _by_number(problem.field)
    return origin, where, problem.origin, problem.subject, problem.field, problem.reason, problem.fatal


def _by_number(text: str) -> list[str | int]:
    """What sorts ``#11`` behind ``#2``: every second entry is a number."""
    return [int(part) if index % 2 else part for index, part in enumerate(_NUMBER.split(text))]


class Sink(Protocol):
    """Takes what a source says. Called from the source's threads; never blocks for long."""

    def apply(self, changes: Sequence[Change]) -> None:
        """Take a batch of changes that belong together."""

    def complete(self, kind: str) -> None:
        """The initial state of ``kind`` has been handed over. May be called again after a relist."""

    def report(self, problems: Sequence[Problem]) -> None:
        """Take the whole list of problems that stand now; it replaces the one before."""


@dataclasses.dataclass(frozen=True, slots=True)
class SourceHealth:
    """How well one part of a source is followed.

    Attributes:
        name: which part: a kind of objects, or a folder.
        healthy: changes are seen as they happen.
        detail: what is wrong if it is not healthy; what is out of the ordinary if it is.
        since: seconds since it became healthy, or ceased to be.
        heard: seconds since anything was heard of it; None: nothing ever was.
        interruptions: how often following it broke off, since the start.
        lists: how often all of it was read, since the start.
        left_out: objects that are there, but can't be used.
    """

    name: str
    healthy: bool
    detail: str = ""
    since: float = 0.0
    heard: float | None = None
    interruptions: int = 0
    lists: int = 0
    left_out: int = 0


class Source(Protocol):
    """Somewhere objects come from; as text, it says where."""

    def start(self, sink: Sink) -> None:
        """Begin to deliver to ``sink``, from a thread of the source's own.

        Raises:
            SourceError: it can never work (no such folder, no credentials).
        """

    def stop(self) -> None:
        """Stop, and return when nothing more will be delivered."""

    def health(self) -> Sequence[SourceHealth]:
        """How well each part is followed now. From any thread."""

    def addresses(self) -> Collection[str]:
        """Canonical addresses that it is reached at, as far as they are known; from any thread, and at once."""


class SourceError(Exception):
    """A source that cannot work; the message says why and names the thing at fault."""
