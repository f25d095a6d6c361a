"""Proxies on a loopback server of the tests: sizes and rates that a real API server on two cores does not reach.

The server shares the machine with the proxy, and speaks HTTP without encryption: with both proxies alike. It speaks
JSON, which kube-proxy's configuration can ask for.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bench import live
from bench.errors import BenchError
from bench.kernel import KernelTable
from bench.notices import Notices
from bench.progress import say
from bench.rivals import JSON, NAMES, Name, Rival, Started, started
from bench.served import Served
from cluster.processes import Scratch
from cluster.programs import programs
from netns.namespaces import Namespace


class _Scene(NamedTuple):
    """A proxy that has loaded, and its server."""

    served: Served
    proxy: Started
    table: KernelTable
    namespace: Namespace


def loopback(services: int, updates: int = 10, rivals: Sequence[Name] = NAMES) -> dict[str, Any]:
    """Start to loaded, and changes one by one.

    Args:
        services: how many Services.
        updates: how many slices are changed.
        rivals: the proxies.
    """

    def measure(scene: _Scene, figures: dict[str, Any]) -> None:
        with Notices(scene.namespace) as notices:
            live.one_by_one(scene.served.one, notices, updates, figures)

    return _each("loopback", services, rivals, measure)


def replay(services: int, rate: int, seconds: float, rivals: Sequence[Name] = NAMES) -> dict[str, Any]:
    """Changes at a steady rate.

    Args:
        services: how many Services.
        rate: changes a second.
        seconds: how long.
        rivals: the proxies.
    """

    def measure(scene: _Scene, figures: dict[str, Any]) -> None:
        with Notices(scene.namespace) as notices:
            live.burst(
                lambda look: scene.served.replay(rate, seconds, look),
                live.Receiver(scene.proxy, notices, scene.table, scene.served.changes.endpoints),
                figures,
            )

    return _each("replay", services, rivals, measure)


def _each(
    topic: str, services: int, rivals: Sequence[Name], measure: Callable[[_Scene, dict[str, Any]], None]
) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    failures: list[str] = []
    for rival in rivals:
        figures: dict[str, Any] = {"start s": [], "peak KiB": []}
        try:
            with _loaded(services, rival, figures) as scene:
                measure(scene, figures)
        except BenchError as error:
            failures.append(f"{rival}, {services:,} Services: {error}")
        if figures["start s"]:
            parts.append({"topic": f"{topic} {rival}", "services": services, "figures": figures})
    return {"parts": parts, "failures": failures}


@contextlib.contextmanager
def _loaded(services: int, name: Name, figures: dict[str, Any]) -> Iterator[_Scene]:
    rival = Rival(name, programs().kube_proxy if name == "kube-proxy" else None, JSON)
    with contextlib.closing(Scratch()) as scratch, live.place() as namespace:
        with namespace.enter():
            table = KernelTable()
        with (
            table,
            Served(namespace, services, scratch.path) as served,
            started(rival, namespace, served.kubeconfig, scratch.path) as proxy,
        ):
            live.start(proxy, table, services, figures)
            say(f"{name} has loaded {services:,} Services")
            live.expect_endpoints(table, served.changes.endpoints())
            yield _Scene(served, proxy, table, namespace)
