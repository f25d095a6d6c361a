"""Proxies on a real control plane: kube-proxy and ``nodeproxy run``, one after the other on the same objects.

Each works in a network namespace of its own that begins empty, on a bridge with the API server's. What they did is
read off the kernel, by the same means for both.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import cluster, tree
from bench.errors import BenchError
from bench.kernel import KernelTable
from bench.notices import Notices
from bench.progress import say
from bench.rivals import NAMES, NODE_ADDRESS, Name, Rival, Started, started
from bench.samples import percentile
from bench.writers import Change, Changes
from cluster.control_plane import AGENT, KUBE_PROXY, ControlPlane
from cluster.processes import Scratch
from netns.namespaces import Namespace

PAUSE = 2.0  # seconds between changes: either is idle by then, and longer than the shortest time between its syncs
SETTLE = 5.0  # seconds after which what goes out of use has been deleted
CONVERGENCE = 120.0
GROWTH_FROM = 1 / 3  # of a burst: what is needed for it has been allocated by then
_FULL_SYNC_PATIENCE = 300.0


class Turn(NamedTuple):
    """What is measured of a proxy that runs.

    Attributes:
        updates: changes one by one.
        idle: seconds of doing nothing.
        burst: seconds of changes as fast as possible.
        writers: how many make them.
    """

    updates: int = 0
    idle: float = 0.0
    burst: float = 0.0
    writers: int = 8


def live(
    sizes: Sequence[int], starts: int, turn: dict[str, Any], burst_at: int = 0, rivals: Sequence[Name] = NAMES
) -> dict[str, Any]:
    """Everything on one control plane, the sizes one after the other.

    Args:
        sizes: numbers of Services, ascending.
        starts: how often each proxy is started at the first of them; at the others, once.
        turn: values of :class:`Turn`.
        burst_at: the size at which there is a burst. Idle time is measured at the last one.
        rivals: the proxies.

    Returns:
        ``parts``: for each proxy and size its figures; ``failures``: what could not be measured.
    """
    parts: list[dict[str, Any]] = []
    failures: list[str] = []
    with ControlPlane() as plane, contextlib.closing(Scratch()) as scratch:
        plane.stop_controllers()
        plane.api.create(cluster.created(cluster.node()))
        changes = Changes(0, plane.api.replace)
        for size in sizes:
            began = time.monotonic()
            plane.api.load(cluster.namespaces(changes.services, size))
            plane.api.load(cluster.creatable(changes.services, size))
            changes.services = size
            loading = time.monotonic() - began
            say(f"{size:,} Services were created within {loading:.0f} s")
            wanted = Turn(**turn)
            if size != burst_at:
                wanted = wanted._replace(burst=0.0)
            if size != sizes[-1]:
                wanted = wanted._replace(idle=0.0)
            found: dict[Name, dict[str, Any]] = {rival: {"start s": [], "peak KiB": []} for rival in rivals}
            often = starts if size == sizes[0] else 1
            for number in range(often):
                for rival in rivals:
                    try:
                        bench = _Bench(plane, changes, scratch.path)
                        bench.measure(_rival(plane, rival), found[rival], wanted if number == often - 1 else None)
                    except BenchError as error:
                        failures.append(f"{rival}, {size:,} Services: {error}")
            for rival, figures in found.items():
                if figures["start s"]:
                    figures["objects created s"] = loading
                    parts.append({"topic": f"cluster {rival}", "services": size, "figures": figures})
    return {"parts": parts, "failures": failures}


def _rival(plane: ControlPlane, name: Name) -> Rival:
    return Rival(name, plane.programs.kube_proxy if name == "kube-proxy" else None)


@contextlib.contextmanager
def place() -> Iterator[Namespace]:
    """A network namespace with the node's address."""
    namespace = Namespace("node")
    try:
        namespace.ip(["link set lo up", f"address add {NODE_ADDRESS}/32 dev lo"])
        yield namespace
    finally:
        namespace.close()


class _Bench:
    """One proxy's turn."""

    def __init__(self, plane: ControlPlane, changes: Changes, folder: Path) -> None:
        self._plane, self._changes, self._folder = plane, changes, folder

    def measure(self, rival: Rival, figures: dict[str, Any], turn: Turn | None) -> None:
        """Start it, take the figures, and end it."""
        self._plane.api.close()  # the server closes connections that were idle, at any moment
        user = KUBE_PROXY if rival.name == "kube-proxy" else AGENT
        with place() as namespace:
            self._plane.attach(namespace)
            kubeconfig = self._plane.kubeconfig_for(user)
            with namespace.enter():
                table = KernelTable()
            with table, started(rival, namespace, kubeconfig, self._folder) as proxy:
                start(proxy, table, self._changes.services, figures)
                say(f"{rival.name} has loaded {self._changes.services:,} Services")
                if turn is None:
                    return
                expect_endpoints(table, self._changes.endpoints())
                with Notices(namespace) as notices:
                    if turn.updates:
                        one_by_one(self._changes.make, notices, turn.updates, figures)
                    if turn.idle:
                        idle(proxy, turn.idle, figures)
                    if turn.burst:
                        self._plane.api.close()
                        receiver = Receiver(proxy, notices, table, self._changes.endpoints)
                        burst(lambda look: self._changes.burst(turn.writers, turn.burst, look), receiver, figures)


def start(proxy: Started, table: KernelTable, services: int, figures: dict[str, Any]) -> None:
    """Wait until a proxy that was just started has loaded its rules; note how long that took, and the memory."""
    addresses = {cluster.cluster_ip(number) for number in range(services)}
    with tree.Watch(proxy.pid) as memory:
        loaded = table.wait_loaded(addresses, proxy.ended, _FULL_SYNC_PATIENCE)
        time.sleep(0.5)  # a child that wrote them is still there then, or was looked at in its last moments
        peak = memory.peak()
    figures["start s"].append(loaded - proxy.began)
    figures["peak KiB"].append(peak.total)
    figures.setdefault("own peak KiB", []).append(peak.own)
    figures.setdefault("children's peak KiB", []).append(peak.children)


def one_by_one(make: Callable[[], Change], notices: Notices, count: int, figures: dict[str, Any]) -> None:
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
    figures |= {"update s": sent, "update after answer s": answered, "API server s": server}


def idle(proxy: Started, seconds: float, figures: dict[str, Any]) -> None:
    """Note how much of a processor's time the process takes while nothing happens."""
    time.sleep(SETTLE)
    before, began = tree.cpu_seconds(proxy.pid), time.monotonic()
    time.sleep(seconds)
    spent = tree.cpu_seconds(proxy.pid) - before
    figures["idle CPU %"] = 100 * spent / (time.monotonic() - began)


class Receiver(NamedTuple):
    """Where changes arrive.

    Attributes:
        proxy: the proxy.
        notices: the kernel's, in its namespace.
        table: its table.
        endpoints: tells which endpoints there should be by now.
    """

    proxy: Started
    notices: Notices
    table: KernelTable
    endpoints: Callable[[], dict[str, int]]


def burst(
    write: Callable[[Callable[[float], None]], list[Change]], receiver: Receiver, figures: dict[str, Any]
) -> None:
    """Have many slices changed; note how far the kernel lags behind, and the memory.

    Args:
        write: makes the changes; it is given what it calls about each second.
        receiver: where they arrive.
        figures: where what was measured goes.
    """
    pid, notices = receiver.proxy.pid, receiver.notices
    observed = Observation(pid)
    busy, began = tree.cpu_seconds(pid), time.monotonic()
    with tree.Watch(pid) as memory:
        made = write(observed.look)
        seconds = time.monotonic() - began
        last = latest(made)
        converged(receiver, {change.address for change in last})
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


def converged(receiver: Receiver, last: set[str]) -> None:
    """Wait until the last changes are in force, and nothing but what should be.

    Raises:
        BenchError: that did not come about.
    """
    deadline = time.monotonic() + CONVERGENCE
    while missing := last - receiver.notices.seen().keys():
        if time.monotonic() > deadline:
            msg = f"{len(missing)} of {len(last)} changed Services were not in force after {CONVERGENCE:g} s"
            raise BenchError(msg)
        time.sleep(0.1)
    expect_endpoints(receiver.table, receiver.endpoints())


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
