"""Which measurements a run of the benchmark consists of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

SIZES = (1_000, 5_000, 10_000, 30_000)
MIDDLE = 10_000  # the size of audits and folders
OTHERS_UP_TO = 10_000  # the other layout is quadratic
OTHERS_REPEAT = 3  # and takes most of the time
PIECE = 500
REPEAT = 5
CHANGES = 60
EDITS = 10


@dataclass(frozen=True)
class Task:
    """One measurement, to be repeated.

    Attributes:
        topic: what selects it on the command line.
        measure: its name in :data:`bench.measures.MEASURES`.
        arguments: of the measure.
        most: how often it is repeated at most.
    """

    topic: str
    measure: str
    arguments: dict[str, Any] = field(default_factory=dict)
    most: int = REPEAT

    @property
    def services(self) -> int:
        """How many Services it is about; 0: none."""
        found: int = self.arguments.get("services", 0)
        return found

    @property
    def key(self) -> tuple[str, int]:
        """What names it in checks and tables."""
        return self.topic, self.services

    @property
    def timeout(self) -> float:
        """Seconds after which it is given up."""
        return 300 + self.services / 15


def tasks(sizes: Sequence[int], topics: Sequence[str], changes: int = CHANGES, edits: int = EDITS) -> Iterator[Task]:
    """The measurements of a run.

    Args:
        sizes: numbers of Services.
        topics: what to measure, of :data:`TOPICS`.
        changes: how many Services are changed after each load.
        edits: how many files of the folder are edited.
    """
    middle = MIDDLE if MIDDLE in sizes else max(sizes)
    for topic in topics:
        match topic:
            case "libraries":
                yield Task(topic, "libraries")
            case "load":
                for size in sizes:
                    yield Task(topic, "load", {"services": size, "changes": changes})
            case "added":
                for size in sizes:
                    yield Task(topic, "added", {"services": size})
            case "audit":
                yield Task(topic, "audit", {"services": middle})
            case "isolation":
                yield Task(topic, "isolation", {"services": middle})
            case "folder":
                yield Task(topic, "folder", {"services": middle, "edits": edits})
            case "always":
                for size in (size for size in sizes if size <= OTHERS_UP_TO):
                    # With libnftables 1.0.x a change takes a second: it reads a chain for each endpoint.
                    always = {"services": size, "changes": -(-changes // 6), "endpoint_chains": "Always"}
                    yield Task(topic, "load", always, OTHERS_REPEAT)
            case "anonymous":
                for size in (size for size in sizes if size <= OTHERS_UP_TO):
                    yield Task(topic, "anonymous", {"services": size, "changes": -(-changes // 2)}, OTHERS_REPEAT)
            case "pieces":
                for size in (size for size in sizes if size <= OTHERS_UP_TO):
                    yield Task(topic, "anonymous", {"services": size, "piece": PIECE}, OTHERS_REPEAT)


TOPICS = ("libraries", "load", "added", "audit", "isolation", "folder", "always", "anonymous", "pieces")
"""All topics, in the order of the report."""
