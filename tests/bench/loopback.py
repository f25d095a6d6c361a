"""Proxies on a loopback server of the tests: sizes and rates that a real API server on two cores does not reach.

The server shares the machine with the proxy, and speaks HTTP without encryption: with both proxies alike. It speaks
JSON, which kube-proxy's configuration can ask for.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench import turns
from bench.errors import BenchError
from bench.kernel import KernelTable
from bench.live import place
from bench.notices import Notices
from bench.progress import say
from bench.rivals import JSON, NAMES, Name, Rival, started
from bench.served import Served
from bench.turns import Scene
from cluster.processes import Scratch
from cluster.programs import programs

_Measure = Callable[[Scene, Served, Notices], None]


def loopback(services: int, updates: int = 10, rivals: Sequence[Name] = NAMES) -> dict[str, Any]:
    """Start to loaded, and changes one by one.

    Args:
        services: how many Services.
        updates: how many slices are changed.
        rivals: the proxies.
    """

    def measure(scene: Scene, served: Served, notices: Notices) -> None:
        turns.one_by_one(served.one, scene, notices, updates)

    return _each("loopback", services, rivals, measure)


def replay(services: int, rate: int, seconds: float, rivals: Sequence[Name] = NAMES) -> dict[str, Any]:
    """Changes at a steady rate.

    Args:
        services: how many Services.
        rate: changes a second.
        seconds: how long.
        rivals: the proxies.
    """

    def measure(scene: Scene, served: Served, notices: Notices) -> None:
        turns.burst(lambda look: served.replay(rate, seconds, look), scene, notices)

    return _each("replay", services, rivals, measure)


def _each(topic: str, services: int, rivals: Sequence[Name], measure: _Measure) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    failures: list[str] = []
    for name in rivals:
        figures: dict[str, Any] = {}
        with _started(services, name, figures) as (scene, served):
            try:
                turns.start(scene, services)
                say(f"{name} has loaded {services:,} Services")
                with Notices(scene.namespace) as notices:
                    measure(scene, served, notices)
            except BenchError as error:
                failures.append(f"{name}, {services:,} Services: {error}; its log ends: {scene.proxy.last_words()}")
        if figures:
            parts.append({"topic": f"{topic} {name}", "services": services, "figures": figures})
    return {"parts": parts, "failures": failures}


@contextlib.contextmanager
def _started(services: int, name: Name, figures: dict[str, Any]) -> Iterator[tuple[Scene, Served]]:
    rival = Rival(name, programs().kube_proxy if name == "kube-proxy" else None, JSON)
    with contextlib.closing(Scratch()) as scratch, place() as namespace:
        with namespace.enter():
            table = KernelTable()
        with (
            table,
            Served(namespace, services, scratch.path) as served,
            started(rival, namespace, served.kubeconfig, scratch.path) as proxy,
        ):
            yield Scene(proxy, namespace, table, figures, served.changes.endpoints), served
