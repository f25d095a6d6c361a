"""Which measurements a run of the benchmark consists of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

SIZES = (1_000, 5_000, 10_000, 30_000)
MIDDLE = 10_000  # the size of audits, folders and bursts
LARGE = 16_900  # and of what is measured on a real API server
LARGER = 30_000
THEIRS_UP_TO = 16_900  # kube-proxy with 30,000 Services held a processor within the kernel for 4 minutes, and others up
OTHERS_UP_TO = 10_000  # the other layout is quadratic
OTHERS_REPEAT = 1  # and takes most of the time
PIECE = 500
REPEAT = 2
CHANGES = 60
EDITS = 10
STARTS = 2
UPDATES = 30
BURST = 30  # seconds
IDLE = 125  # seconds: Go collects garbage every two minutes at the latest, and that is most of what it does when idle
RATE = 1_000  # changes a second


@dataclass(frozen=True)
class Task:
    """One measurement, to be repeated.

    Attributes:
        topic: what selects it on the command line.
        measure: its name in :data:`bench.measures.MEASURES`.
        arguments: of the measure.
        most: how often it is repeated at most.
        bound: seconds after which it is given up; None: by the number of Services.
    """

    topic: str
    measure: str
    arguments: dict[str, Any] = field(default_factory=dict)
    most: int = REPEAT
    bound: float | None = None

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
        return 300 + self.services / 15 if self.bound is None else self.bound


BESIDE = ("cluster", "burst", "loopback", "replay")
"""Topics in which kube-proxy and nodeproxy are measured as people start them; they need Kubernetes' programs."""


@dataclass(frozen=True)
class Beside:
    """How kube-proxy and nodeproxy are compared.

    Attributes:
        alone: nodeproxy alone, without kube-proxy beside it.
        theirs_up_to: kube-proxy is not started with more Services than these.
        starts: how often each is started at the first size.
        updates: how many slices are changed one by one.
        idle: seconds of doing nothing.
        burst: seconds of changes without a pause.
        rate: changes a second of the loopback server.
    """

    alone: bool = False
    theirs_up_to: int = THEIRS_UP_TO
    starts: int = STARTS
    updates: int = UPDATES
    idle: float = IDLE
    burst: float = BURST
    rate: int = RATE

    def tasks(self, sizes: Sequence[int], topics: Sequence[str]) -> Iterator[Task]:
        """The measurements, each once: they take minutes, and repeat within what varies."""
        middle = MIDDLE if MIDDLE in sizes else max(sizes)
        turn = {"updates": self.updates, "idle": self.idle}
        if "cluster" in topics or "burst" in topics:
            rivals = self._rivals(middle)
            live: dict[str, Any] = {"sizes": [middle], "starts": self.starts, "turn": turn, "rivals": rivals}
            if "cluster" not in topics:
                live |= {"starts": 1, "turn": {}}
            elif middle == MIDDLE and max(sizes) > MIDDLE:
                live["sizes"] = [MIDDLE, LARGE]
            if "burst" in topics:
                live |= {"burst_at": middle, "turn": {**live["turn"], "burst": self.burst}}
            yield Task("cluster" if "cluster" in topics else "burst", "live", live, 1, 1800)
        if "loopback" in topics:
            yield Task("loopback", "loopback", {"services": max(sizes), "rivals": self._rivals(max(sizes))}, 1, 900)
        if "replay" in topics:
            replay = {"services": middle, "rivals": self._rivals(middle), "rate": self.rate, "seconds": self.burst}
            yield Task("replay", "replay", replay, 1, 600)

    def _rivals(self, services: int) -> list[str]:
        theirs = not self.alone and services <= self.theirs_up_to
        return ["kube-proxy", "nodeproxy"] if theirs else ["nodeproxy"]


def tasks(
    sizes: Sequence[int],
    topics: Sequence[str],
    changes: int = CHANGES,
    edits: int = EDITS,
    beside: Beside | None = None,
) -> Iterator[Task]:
    """The measurements of a run.

    Args:
        sizes: numbers of Services.
        topics: what to measure, of :data:`TOPICS`.
        changes: how many Services are changed after each load.
        edits: how many files of the folder are edited.
        beside: how kube-proxy and nodeproxy are compared.
    """
    beside = beside or Beside()
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

    yield from beside.tasks(sizes, topics)


INSIDE = ("libraries", "load", "added", "audit", "isolation", "folder", "always", "anonymous", "pieces")
"""Topics that need no other programs."""
TOPICS = (*INSIDE, *BESIDE)
"""All topics, in the order of the report."""
