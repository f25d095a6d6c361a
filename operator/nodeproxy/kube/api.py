"""The API server as a source of objects: a reflector for each kind, each on a thread, all of them watched over."""

import random
import threading
from collections.abc import Collection, Sequence
from functools import partial

import structlog

from nodeproxy.kube.access import Access
from nodeproxy.kube.reflector import Reflector
from nodeproxy.kube.resources import resources
from nodeproxy.kube.source import Change, Problem, Sink, SourceError, SourceHealth
from nodeproxy.kube.timings import Timings
from nodeproxy.kube.transport import Transport

__all__ = ["ApiSource", "Timings"]

_STOP_SECONDS = 2.0
_LOOKS_PER_SILENCE = 8
_LONGEST_LOOK = 5.0

_log = structlog.get_logger(__name__)


class ApiSource:
    """A source that follows Services, EndpointSlices, the own Node and ServiceCIDRs in the API server.

    It keeps what it knows while the API server can't be reached, and goes on when it is back.

    Args:
        access: how the API server is reached.
        node_name: the Node whose changes are followed.
        timings: how long to wait for what.
        jitter: makes pauses differ from node to node.
    """

    def __init__(
        self, access: Access, node_name: str, timings: Timings | None = None, jitter: random.Random | None = None
    ) -> None:
        self._access = access
        self._timings = timings or Timings()
        seeds = jitter or random.Random()  # noqa: S311 -- pauses are no secrets
        transport = Transport(access, self._timings.connect)
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # held while something is delivered
        self._sink: Sink | None = None
        self._problems: dict[str, Sequence[Problem]] = {}
        self._reported: list[Problem] = []
        self._addresses: frozenset[str] = frozenset()
        self._supervisor: threading.Thread | None = None
        self._reflectors = [
            Reflector(
                resource,
                transport,
                self._timings,
                random.Random(seeds.random()),  # noqa: S311
                partial(self._deliver, resource.kind),
                partial(self._complete, resource.kind),
                self._wake,
            )
            for resource in resources(node_name)
        ]
        self._threads: dict[Reflector, threading.Thread] = {}

    def __str__(self) -> str:
        return self._access.server

    def start(self, sink: Sink) -> None:
        """Begin to deliver to ``sink``, from threads of its own. An API server that can't be reached is waited for.

        Raises:
            SourceError: it was started before.
        """
        if self._supervisor is not None:
            msg = f"{self} is followed already"
            raise SourceError(msg)
        if self._access.through_service:
            _log.error(
                "the API server is reached through a Service",
                server=self._access.server,
                effect="on a node without rules it can't be reached, so that none are ever written",
                remedy="set KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, --master or --kubeconfig to an address"
                " of its own",
            )
        self._sink = sink
        for reflector in self._reflectors:
            self._begin(reflector)
        self._supervisor = threading.Thread(target=self._supervise, name="watches", daemon=True)
        self._supervisor.start()

    def stop(self) -> None:
        """Stop, and return when nothing more will be delivered; threads that wait for an answer end a little later."""
        self._stopping.set()
        self._wake()
        for reflector in self._reflectors:
            reflector.abort()
        with self._lock:
            self._sink = None
        threads = [*self._threads.values(), *([self._supervisor] if self._supervisor else [])]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_STOP_SECONDS / len(threads))
        self._access.close()

    def health(self) -> Sequence[SourceHealth]:
        """How well each kind is followed now."""
        return [reflector.health() for reflector in self._reflectors]

    def addresses(self) -> Collection[str]:
        """Canonical addresses of the API server; empty until they have been looked up."""
        return self._addresses

    def _begin(self, reflector: Reflector) -> None:
        name = f"watch-{reflector.resource.kind}"
        thread = threading.Thread(target=reflector.run, args=(self._stopping,), name=name, daemon=True)
        self._threads[reflector] = thread
        thread.start()

    def _supervise(self) -> None:
        """Look after the watches: end those that fell silent, and replace threads that died."""
        pause = min(self._timings.silence / _LOOKS_PER_SILENCE, _LONGEST_LOOK)
        self._addresses = self._access.addresses()
        while not self._stopping.wait(pause):
            for reflector in self._reflectors:
                if not self._threads[reflector].is_alive():
                    _log.error("watch ended by itself, begun again", resource=reflector.resource.path)
                    self._begin(reflector)
                elif reflector.is_silent():
                    reflector.abort()

    def _wake(self) -> None:
        """Have all of them try again that pause since the API server did not answer."""
        for reflector in self._reflectors:
            reflector.wake()

    def _deliver(self, kind: str, changes: Sequence[Change], problems: Sequence[Problem]) -> None:
        with self._lock:
            if self._sink is None or self._stopping.is_set():
                return
            if changes:
                self._sink.apply(changes)
            self._problems[kind] = problems
            reported = [problem for each in self._problems.values() for problem in each]
            if reported != self._reported:
                self._sink.report(reported)
                self._reported = reported

    def _complete(self, kind: str) -> None:
        with self._lock:
            if self._sink is not None and not self._stopping.is_set():
                self._sink.complete(kind)
