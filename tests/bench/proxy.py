"""The whole proxy in this process, with clocks around its stages: what is measured but for ``nodeproxy run`` itself."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench import cluster
from bench.errors import BenchError
from bench.stages import Stages
from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.support import ipv6_usable
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.decode import decode_json
from nodeproxy.kube.objects import KINDS
from nodeproxy.kube.source import Change, Sink, SourceHealth
from nodeproxy.model.node import served_families
from nodeproxy.model.settings import EndpointChains, ProxySettings
from nodeproxy.report.journal import Journal, SyncResult
from nodeproxy.report.logs import configure_logs
from nodeproxy.ruleset.render import TEMPLATES, Renderer
from nodeproxy.sync import proxier as proxier_module
from nodeproxy.sync.agent import Agent, AgentOptions
from nodeproxy.sync.planner import Planner
from nodeproxy.sync.proxier import Proxier
from nodeproxy.sync.runner import Intervals
from nodeproxy.sync.store import Store

PAGE = 500  # objects that come together, as pages of a list do


class Run(NamedTuple):
    """A transaction.

    Attributes:
        began: perf_counter seconds.
        ended: the same, when the kernel had said yes.
        cpu: seconds of a processor that it took, the kernel's included.
        size: characters of its text.
    """

    began: float
    ended: float
    cpu: float
    size: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


class Synced(NamedTuple):
    """The end of a sync of one family."""

    at: float
    result: SyncResult


class Generated:
    """A source that makes up its objects. Its own work is a stage, ``generate``, that is no part of the product."""

    def __init__(self, services: int, endpoints: int, stages: Stages) -> None:
        self._services, self._endpoints, self._stages = services, endpoints, stages
        self._thread: threading.Thread | None = None
        self.sink: Sink | None = None

    def __str__(self) -> str:
        return "generated objects"

    def start(self, sink: Sink) -> None:
        """Begin to deliver, from a thread of its own."""
        self.sink = sink
        self._thread = threading.Thread(target=self._deliver, args=(sink,), name="source", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Nothing is left to stop."""

    def health(self) -> tuple[SourceHealth, ...]:
        """Nothing can be wrong with it."""
        return ()

    def addresses(self) -> tuple[str, ...]:
        """None."""
        return ()

    def _deliver(self, sink: Sink) -> None:
        stages = self._stages
        documents = cluster.objects(self._services, self._endpoints)
        while True:
            with stages.stage("generate"):
                page = [document for _, document in zip(range(PAGE), documents, strict=False)]
            if not page:
                break
            with stages.stage("decode"):
                changes = [decoded(document) for document in page]
            sink.apply(changes)
        for kind in KINDS:
            sink.complete(kind)


def decoded(document: bytes) -> Change:
    """An object's JSON as a change.

    Raises:
        BenchError: the product does not take it as it is.
    """
    found = decode_json(document, "bench")
    if found.key is None or found.object is None or found.problems:
        msg = f"not taken: {document[:200]!r}: {found.problems}"
        raise BenchError(msg)
    return Change(found.key, found.object)


class BenchClock:
    """The time, which can be moved on.

    What is due later comes at once then.
    """

    def __init__(self) -> None:
        self._ahead = 0.0
        self._event: threading.Event | None = None

    def now(self) -> float:
        """Monotonic seconds, moved on."""
        return time.monotonic() + self._ahead

    def wait(self, event: threading.Event, timeout: float) -> None:
        """Wait for an event, or for :meth:`advance`."""
        self._event = event
        event.wait(timeout)

    def advance(self, seconds: float) -> None:
        """Move the time on."""
        self._ahead += seconds
        if self._event is not None:
            self._event.set()


class Witness(Journal):
    """The log, and what was said in it of syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs: list[Synced] = []
        self.failures: list[str] = []
        self.changed = threading.Condition()

    def synced(self, result: SyncResult) -> None:
        """Note when a sync ended."""
        super().synced(result)
        self._note(self.syncs, Synced(time.perf_counter(), result))

    def failed(self, family: Family, error: Exception, retry_seconds: float) -> None:
        """Note what makes the measurement worthless."""
        super().failed(family, error, retry_seconds)
        self._note(self.failures, f"{family.label}: {error}")

    def tidying_failed(self, family: Family, error: Exception) -> None:
        """The same."""
        super().tidying_failed(family, error)
        self._note(self.failures, f"{family.label}: {error}")

    def wait(self, condition: Callable[[], bool], timeout: float) -> None:
        """Wait for something that a sync brings about.

        Raises:
            BenchError: a sync failed, or it took too long.
        """
        with self.changed:
            met = self.changed.wait_for(lambda: bool(self.failures) or condition(), timeout)
        if self.failures:
            raise BenchError(self.failures[0])
        if not met:
            msg = f"nothing more happened within {timeout:g} s"
            raise BenchError(msg)

    def _note(self, notes: list[Any], note: object) -> None:
        with self.changed:
            notes.append(note)
            self.changed.notify_all()


@dataclass(frozen=True, slots=True)
class Load:
    """What to load.

    Attributes:
        services: how many Services.
        endpoints: how many endpoints each has.
        endpoint_chains: whether each endpoint has a chain.
        templates: folder of the templates.
        refused: how many Services the templates make nft or the kernel refuse.
    """

    services: int
    endpoints: int = 10
    endpoint_chains: EndpointChains = "WhenAffinity"
    templates: Path = TEMPLATES
    refused: int = 0


class Proxy:
    """A proxy that works in a thread, in the network namespace of the thread that makes it.

    Attributes:
        runs: the transactions so far, refused ones included.
        journal: what it said of its syncs.
        stages: seconds by stage.
        families: the families it serves.
    """

    def __init__(self, load: Load) -> None:
        configure_logs("json")
        self.load = load
        self.runs: list[Run] = []
        self.stages = Stages()
        self.journal = Witness()
        self.clock = BenchClock()
        self.families = served_families(Family.IPV4, ipv6_usable())
        self.began = 0.0
        self._put_clocks()
        settings = ProxySettings(cluster_cidrs=(cluster.CLUSTER_CIDR,), endpoint_chains=load.endpoint_chains)
        self._source = Generated(load.services, load.endpoints, self.stages)
        options = AgentOptions(cluster.NODE, settings, Intervals(minimum=0.0), load.templates)
        self._agent = Agent(self._source, options, self.journal, self.clock)
        self._thread = threading.Thread(target=self._work, name="agent", daemon=True)

    @contextmanager
    def working(self, timeout: float) -> Iterator[None]:
        """Load; the ``with`` statement begins when all is in the kernel.

        Raises:
            BenchError: it was not loaded within ``timeout`` seconds, or in part.
        """
        self.began = time.perf_counter()
        self._thread.start()
        try:
            self.wait_for_syncs(len(self.families), timeout)
            wanted = self.load.services - self.load.refused
            if (found := self.journal.syncs[0].result.services) != wanted:
                msg = f"{found} Services were loaded instead of {wanted}"
                raise BenchError(msg)
            yield
        finally:
            self._agent.stop()
            self._thread.join(30)
            self.stages.restore()

    def wait_for_syncs(self, count: int, timeout: float) -> None:
        """Wait until there have been so many syncs in all.

        Raises:
            BenchError: one failed, or it took longer than ``timeout`` seconds.
        """
        self.journal.wait(lambda: len(self.journal.syncs) >= count, timeout)

    def apply(self, change: Change, timeout: float = 30.0) -> tuple[float, Run]:
        """Have a change happen.

        Returns:
            seconds from when the sink was given it to the end of its transaction, and the transaction.

        Raises:
            BenchError: it led to no transaction.
        """
        sink = self._source.sink
        if sink is None:
            msg = "the source was not started"
            raise BenchError(msg)
        syncs = len(self.journal.syncs)
        runs = len(self.runs)
        began = time.perf_counter()
        sink.apply([change])
        self.wait_for_syncs(syncs + len(self.families), timeout)
        own = [run for run in self.runs[runs:] if run.ended <= self.journal.syncs[syncs].at and run.began >= began]
        if not own or self.journal.syncs[syncs].result.transactions != 1:
            msg = f"{change.key} led to {self.journal.syncs[syncs].result.transactions} transactions instead of one"
            raise BenchError(msg)
        return own[-1].ended - began, own[-1]

    def _work(self) -> None:
        try:
            self._agent.run()
        except Exception as error:  # whoever waits should hear of it
            self.journal.failures.append(f"{type(error).__name__}: {error}")
            raise
        finally:
            with self.journal.changed:
                self.journal.changed.notify_all()

    def _put_clocks(self) -> None:
        stages = self.stages
        for method in ("apply", "take", "view", "everything"):
            stages.around(Store, method, "store")
        for method in ("update", "move"):
            stages.around(Planner, method, "plan")
        stages.around(Proxier, "sync", "compare")
        stages.around(proxier_module, "read_back", "read back")
        stages.around_methods(Renderer, "render")
        run = Nft.run

        def noted(nft: Nft, text: str) -> None:
            began, busy = time.perf_counter(), time.thread_time()
            try:
                with stages.stage("apply"):
                    run(nft, text)
            finally:
                self.runs.append(Run(began, time.perf_counter(), time.thread_time() - busy, len(text)))

        stages.replace(Nft, "run", noted)
