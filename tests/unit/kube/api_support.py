"""A source that follows the loopback API server, with timings that let tests end soon, and what it should have seen."""

import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from apiserver import ApiServer
from apiserver.answers import Settings
from nodeproxy.kube.access import Access, find_access
from nodeproxy.kube.api import ApiSource, Timings
from nodeproxy.kube.decode import decode
from nodeproxy.kube.objects import KINDS, KubeObject
from nodeproxy.kube.source import Change, ObjectKey

from .support import RecordingSink, endpoint_slice, service

NODE = "node-a"
WAIT_SECONDS = 30.0
BOOKMARK_SECONDS = 0.3

FAST = Timings(
    connect=2.0,
    answer=2.0,
    silence=2.0,
    watch=(300.0, 600.0),
    first_backoff=0.05,
    most_backoff=0.4,
    steady=0.5,
    brief=0.01,
    absent=0.2,
    most_wait=5.0,
)
"""Silence is noticed in about 2 s, and pauses are short; the ratios are those of the defaults, about."""


class StrictSink(RecordingSink):
    """A sink that notes what no source may do.

    Attributes:
        faults: deletions of what was not there, changes that change nothing, and words after the end.
        versions: the resource versions of each object, in the order in which they came.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.versions: dict[ObjectKey, list[int]] = {}
        self.is_over = False

    def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if self.is_over:
                self.faults.append(f"{change.key} after the end")
            if change.object is None and change.key not in self.objects:
                self.faults.append(f"{change.key} deleted, but not known")
            elif change.object is not None and self.objects.get(change.key) == change.object:
                self.faults.append(f"{change.key} changed, but the same")
            if change.object is not None:
                self.versions.setdefault(change.key, []).append(int(change.object.metadata.resource_version or 0))
        super().apply(changes)

    @property
    def changed(self) -> list[ObjectKey]:
        """The keys of all changes, in order."""
        return [change.key for batch in list(self.batches) for change in batch]

    def wait_for_start(self) -> None:
        """Wait until the initial state has come."""
        self.wait(lambda: set(KINDS) <= set(self.completed), WAIT_SECONDS)


class Following:
    """A source at work on a server, and the sink that it speaks to.

    Attributes:
        log: what is logged meanwhile, as structlog's ``capture_logs`` keeps it.
    """

    def __init__(self, server: ApiServer, source: ApiSource, sink: StrictSink, log: list[Any]) -> None:
        self.server, self.source, self.sink, self.log = server, source, sink, log

    def wait_until_equal(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until the sink holds what the server does."""
        wanted = expected(self.server)
        try:
            self.sink.wait(lambda: self.sink.objects == wanted, seconds)
        except AssertionError:
            objects = dict(self.sink.objects)
            differing = [key for key in {*wanted, *objects} if wanted.get(key) != objects.get(key)]
            pytest.fail(f"not the same within {seconds} s: {sorted(differing)}; {self.source.health()}")

    def wait_until_healthy(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until all kinds are followed."""

        def is_healthy() -> bool:
            return all(health.healthy for health in self.source.health())

        self.server.wait(is_healthy, "not healthy", seconds)

    def wait_until_unhealthy(self, kind: str, seconds: float = WAIT_SECONDS) -> str:
        """Wait until a kind is said not to be followed; returns why."""
        self.server.wait(lambda: not self.health(kind).healthy, f"{kind} still healthy", seconds)
        return self.health(kind).detail

    def health(self, kind: str):
        """The health of one kind."""
        return next(health for health in self.source.health() if health.name == kind)

    def logged(self, event: str) -> list[Any]:
        """The log's lines of one event."""
        return [line for line in list(self.log) if line["event"] == event]


@contextmanager
def following(
    server: ApiServer, folder: Path, timings: Timings = FAST, *, port: int = 0, access: Access | None = None
) -> Iterator[Following]:
    """A source that follows a server (through another port, if one is given) while the ``with`` statement lasts.

    At the end it must stop soon, and must not have done what no source may do.
    """
    path = server.kubeconfig(folder / f"kubeconfig-{port}", port=port)
    sink = StrictSink()
    with capture_logs() as log:
        source = ApiSource(access or find_access(str(path)), NODE, timings, random.Random(7))  # noqa: S311 -- the same pauses each time
        source.start(sink)
        try:
            yield Following(server, source, sink, log)
        finally:
            source.stop()
            sink.is_over = True
    assert not sink.faults
    assert not [line for line in log if line["log_level"] in {"error", "critical"}]


@contextmanager
def serving(**settings: Any) -> Iterator[ApiServer]:
    """A server that holds what every cluster does, with bookmarks that come often."""
    with ApiServer(settings=Settings(**{"bookmark_seconds": BOOKMARK_SECONDS, **settings})) as server:
        server.put(*basics())
        yield server


def basics() -> list[dict[str, Any]]:
    """The API server's own Service and EndpointSlice, two Nodes, a ServiceCIDR, and one Service with its slice."""
    return [
        service("kubernetes", namespace="default", clusterIP="10.96.0.1", ports=[{"name": "https", "port": 443}]),
        endpoint_slice("kubernetes", metadata=meta("kubernetes", "default", "kubernetes")),
        node(NODE),
        node("node-b"),
        service_cidr(),
        service("web"),
        endpoint_slice("web-1"),
    ]


def meta(name: str, namespace: str, service_name: str, **labels: str) -> dict[str, Any]:
    """Metadata of an EndpointSlice."""
    labels = {"kubernetes.io/service-name": service_name, **labels}
    return {"name": name, "namespace": namespace, "labels": labels}


def node(name: str, cidr: str = "10.244.0.0/24") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    }


def service_cidr(*cidrs: str) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": list(cidrs or ("10.96.0.0/16",))},
    }


def many_services(count: int, **spec: Any) -> list[dict[str, Any]]:
    """Services ``s0`` and so on."""
    return [service(f"s{index}", clusterIP=f"10.97.{index // 250}.{index % 250 + 1}", **spec) for index in range(count)]


def expected(server: ApiServer) -> dict[ObjectKey, KubeObject]:
    """What a proxy on :data:`NODE` should know: all that the server has, but for what it need not."""
    wanted = {}
    for (kind, _, name), obj in server.state().items():
        labels = obj["metadata"].get("labels") or {}
        if kind == "Node" and name != NODE:
            continue
        if kind == "Service" and "service.kubernetes.io/service-proxy-name" in labels:
            continue
        if kind == "Service" and obj["spec"].get("clusterIP") == "None":
            continue
        if kind == "EndpointSlice" and "service.kubernetes.io/headless" in labels:
            continue
        decoded = decode(obj, "x")
        if decoded.object is not None and decoded.key is not None:
            wanted[decoded.key] = decoded.object
    return wanted


def own_threads() -> list[str]:
    """The names of the threads that are not the tests' servers'."""
    return sorted(
        thread.name for thread in threading.enumerate() if not thread.name.startswith(("apiserver", "hostile-proxy"))
    )


def open_files() -> int:
    """How many file descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 -- the one it needs itself is counted each time
