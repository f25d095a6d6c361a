"""Proxies on a real control plane: kube-proxy and ``nodeproxy run`` on the same objects.

Each works in a network namespace of its own that begins empty, on a bridge with the API server's, while the other is
not there, or idle.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import cluster, turns
from bench.errors import BenchError
from bench.kernel import KernelTable
from bench.notices import Notices
from bench.progress import say
from bench.rivals import NAMES, NODE_ADDRESS, Name, Rival, started
from bench.turns import Scene
from bench.writers import Changes
from cluster.control_plane import AGENT, KUBE_PROXY, ControlPlane
from cluster.processes import Scratch
from netns.namespaces import Namespace


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
    with ControlPlane() as plane, contextlib.closing(Scratch()) as scratch:
        plane.stop_controllers()
        plane.api.create(cluster.created(cluster.node()))
        bench = _Bench(plane, scratch.path, rivals)
        for size in sizes:
            seconds = bench.create(size)
            for _ in range(starts - 1 if size == sizes[0] else 0):
                bench.measure(Turn())
            wanted = Turn(**turn)
            if size != burst_at:
                wanted = wanted._replace(burst=0.0)
            if size != sizes[-1]:
                wanted = wanted._replace(idle=0.0)
            bench.measure(wanted)
            for rival, figures in bench.take().items():
                figures["objects created s"] = seconds
                parts.append({"topic": f"cluster {rival}", "services": size, "figures": figures})
    return {"parts": parts, "failures": bench.failures}


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
    """The proxies on one control plane.

    Attributes:
        failures: what could not be measured.
    """

    def __init__(self, plane: ControlPlane, folder: Path, rivals: Sequence[Name]) -> None:
        self._plane, self._folder, self._rivals = plane, folder, rivals
        self._changes = Changes(0, plane.api.replace)
        self._figures: dict[Name, dict[str, Any]] = {}
        self.failures: list[str] = []

    def create(self, services: int) -> float:
        """Create Services until there are so many; returns the seconds that it took."""
        began = time.monotonic()
        first, self._changes.services = self._changes.services, services
        self._plane.api.load(cluster.namespaces(first, services))
        self._plane.api.load(cluster.creatable(first, services))
        seconds = time.monotonic() - began
        say(f"{services:,} Services were created within {seconds:.0f} s")
        return seconds

    def take(self) -> dict[Name, dict[str, Any]]:
        """The figures so far of each proxy that has any; others begin from now."""
        found, self._figures = self._figures, {}
        return {name: figures for name, figures in found.items() if figures}

    def measure(self, turn: Turn) -> None:
        """Start each proxy, take its figures, and end it: the first ones only once all have been idle together."""
        waiting: list[Scene] = []
        with contextlib.ExitStack() as others:
            for name in self._rivals:
                last = name == self._rivals[-1]
                with contextlib.ExitStack() as own:
                    scene = (own if last or not turn.idle else others).enter_context(self._started(name))
                    try:
                        turns.start(scene, self._changes.services)
                        say(f"{name} has loaded {self._changes.services:,} Services")
                        if last and turn.idle:
                            turns.idle([*waiting, scene], turn.idle)
                            others.close()
                        self._change(scene, turn)
                        waiting.append(scene)
                    except BenchError as error:
                        what = f"{name}, {self._changes.services:,} Services: {error}"
                        self.failures.append(f"{what}; its log ends: {scene.proxy.last_words()}")

    def _change(self, scene: Scene, turn: Turn) -> None:
        if not turn.updates and not turn.burst:
            return
        with Notices(scene.namespace) as notices:
            if turn.updates:
                self._plane.api.close()  # the server closes connections that were idle, at any moment
                turns.one_by_one(self._changes.make, scene, notices, turn.updates)
            if turn.burst:
                turns.burst(lambda look: self._changes.burst(turn.writers, turn.burst, look), scene, notices)

    @contextlib.contextmanager
    def _started(self, name: Name) -> Iterator[Scene]:
        theirs = name == "kube-proxy"
        rival = Rival(name, self._plane.programs.kube_proxy if theirs else None)
        with place() as namespace:
            self._plane.attach(namespace)
            kubeconfig = self._plane.kubeconfig_for(KUBE_PROXY if theirs else AGENT)
            with namespace.enter():
                table = KernelTable()
            with table, started(rival, namespace, kubeconfig, self._folder) as proxy:
                figures = self._figures.setdefault(name, {})
                yield Scene(proxy, namespace, table, figures, self._changes.endpoints)
