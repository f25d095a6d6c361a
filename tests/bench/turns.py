"""What is measured of a proxy that runs, wherever its objects come from: read off the kernel, alike for all."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bench import cluster, tree
from bench.errors import BenchError
from bench.kernel import KernelTable
from bench.notices import Notices
from bench.rivals import Started
from bench.samples import percentile
from bench.writers import Change
from netns.namespaces import Namespace

PAUSE = 2.0  # seconds between changes: either is idle by then, and longer than the shortest time between its syncs
SETTLE = 5.0  # seconds after which what goes out of use has been deleted
CONVERGENCE = 120.0
GROWTH_FROM = 1 / 3  # of a burst: what is needed for it has been allocated by then


class Scene(NamedTuple):
    """A proxy at work.

    Attributes:
        proxy: it.
        namespace: where.
        table: what it has put into the kernel.
        figures: where what was measured goes.
        endpoints: tells which endpoints there should be by now.
    """

    proxy: Started
    namespace: Namespace
    table: KernelTable
    figures: dict[str, Any]
    endpoints: Callable[[], dict[str, int]]


def start(scene: Scene, services: int) -> None:
    """Wait until a proxy that was just started has loaded its rules; note how long that took, and the memory.

    Raises:
        BenchError: it took too long, or the rules are wrong.
    """
    proxy, table, figures = scene.proxy, scene.table, scene.figures
    addresses = {cluster.cluster_ip(number) for number in range(services)}
    with tree.Watch(proxy.pid) as memory:
        loaded = table.wait_loaded(addresses, proxy.ended, 120 + services / 60)
        time.sleep(0.5)  # a child that wrote them is still there then, or was looked at in its last moments
        peak = memory.peak()
        busy = tree.cpu_seconds(proxy.pid)
    figures.setdefault("start CPU s", []).append(busy)
    figures.setdefault("start s", []).append(loaded - proxy.began)
    figures.setdefault("peak KiB", []).append(peak.total)
    figures.setdefault("own peak KiB", []).append(peak.own)
    figures.setdefault("children's peak KiB", []).append(peak.children)
    expect_endpoints(table, scene.endpoints())


def one_by_one(make: Callable[[], Change], scene: Scene, notices: Notices, count: int) -> None:
    """Change one slice at a time, with idle time before each; note how long it takes until the kernel has it."""
    sent: list[float] = []
    answered: list[float] = []
    server: list[float] = []
    for _ in range(count):
        time.sleep(PAUSE)
        change = make()
        at = notices.wait(change.address, 60)
        sent.append(at - change.sent)
        answered.append(max(0.0, at - change.answered))
        server.append(change.answered - change.sent)
    scene.figures.update({"update s": sent, "update after answer s": answered, "API server s": server})


def idle(scenes: Sequence[Scene], seconds: float) -> None:
    """Note how much of a processor's time processes take while nothing happens; of several at the same time."""
    time.sleep(SETTLE)
    before, began = [tree.cpu_seconds(scene.proxy.pid) for scene in scenes], time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    for scene, spent in zip(scenes, before, strict=True):
        scene.figures["idle CPU %"] = 100 * (tree.cpu_seconds(scene.proxy.pid) - spent) / passed


def burst(write: Callable[[Callable[[float], None]], list[Change]], scene: Scene, notices: Notices) -> None:
    """Have many slices changed; note how far the kernel lags behind, and the memory.

    Args:
        write: makes the changes; it is given what it calls about each second.
        scene: the proxy.
        notices: those of its namespace.

    Raises:
        BenchError: not all changes came into force.
    """
    pid, figures = scene.proxy.pid, scene.figures
    observed = Observation(pid)
    busy, began = tree.cpu_seconds(pid), time.monotonic()
    with tree.Watch(pid) as memory:
        made = write(observed.look)
        seconds = time.monotonic() - began
        last = latest(made)
        converged(scene, notices, {change.address for change in last})
        figures["burst peak KiB"] = memory.peak().total
    figures["burst CPU s"] = tree.cpu_seconds(pid) - busy
    seen = notices.seen()
    figures |= lag(made, seen, seconds)
    end = max(change.answered for change in made)
    figures["burst convergence s"] = max(0.0, max(seen[change.address] for change in last) - end)
    figures |= observed.figures()


def latest(made: Sequence[Change]) -> list[Change]:
    """The last change of each Service."""
    return list({change.service: change for change in sorted(made, key=lambda change: change.answered)}.values())


def lag(made: Sequence[Change], seen: dict[str, float], seconds: float) -> dict[str, Any]:
    """How long changes took to come into force, from the API server's answer; those that others overtook did not."""
    in_order = sorted((change for change in made if change.address in seen), key=lambda change: change.answered)
    lags = [max(0.0, seen[change.address] - change.answered) for change in in_order]
    figures: dict[str, Any] = {"burst changes a second": len(made) / seconds, "burst overtaken": len(made) - len(lags)}
    figures |= {f"burst lag p{percent} s": percentile(lags, percent) for percent in (50, 99, 100)}
    # One that keeps growing ends in all memory, or hours late.
    third = len(lags) // 3
    figures["burst lag early s"] = percentile(lags[: third or None], 50)
    figures["burst lag late s"] = percentile(lags[-third:], 50)
    return figures


def converged(scene: Scene, notices: Notices, last: set[str]) -> None:
    """Wait until the last changes are in force, and nothing but what should be.

    Raises:
        BenchError: that did not come about.
    """
    deadline = time.monotonic() + CONVERGENCE
    while missing := last - notices.seen().keys():
        if time.monotonic() > deadline:
            msg = f"{len(missing)} of {len(last)} changed Services were not in force after {CONVERGENCE:g} s"
            raise BenchError(msg)
        time.sleep(0.1)
    expect_endpoints(scene.table, scene.endpoints())


def expect_endpoints(table: KernelTable, endpoints: dict[str, int]) -> None:
    """Wait until the table has exactly these endpoints; what is out of use may be deleted some seconds late.

    Raises:
        BenchError: it has others.
    """
    deadline = time.monotonic() + 20
    while (found := table.endpoints()) != endpoints:
        if time.monotonic() > deadline:
            missing, over = endpoints.keys() - found.keys(), found.keys() - endpoints.keys()
            msg = f"endpoints in the kernel: {len(missing)} are missing, {len(over)} should not be there"
            raise BenchError(msg)
        time.sleep(1)


class Observation:
    """The memory of a process tree in the course of a burst."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = tree.resident(pid)
        self._marks: list[tuple[float, int]] = []

    def look(self, seconds: float) -> None:
        """Note it, so many seconds after the beginning."""
        self._marks.append((seconds, tree.resident(self._pid)))

    def figures(self) -> dict[str, Any]:
        """Before, at the end, and by how much the most of the last third is above the most of the first."""
        end = max(seconds for seconds, _ in self._marks)
        early = [kib for seconds, kib in self._marks if seconds <= end * GROWTH_FROM] or [self._marks[0][1]]
        late = [kib for seconds, kib in self._marks if seconds >= end * (1 - GROWTH_FROM)]
        return {
            "burst memory before KiB": self._before,
            "burst memory after KiB": tree.resident(self._pid),
            "burst growth KiB": max(late) - max(early),
        }
