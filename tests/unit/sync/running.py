"""An agent that works, with a source that a test speaks through."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from netns.namespaces import CommandError, Namespace
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.objects import KINDS
from nodeproxy.kube.source import Change, Sink, SourceHealth
from nodeproxy.model.settings import ProxySettings
from nodeproxy.ruleset.render import TEMPLATES
from nodeproxy.sync.agent import Agent, AgentOptions
from nodeproxy.sync.runner import Intervals

from .support import NODE, TABLE_FAMILY, SilentJournal, endpoints, node, service

SETTINGS = ProxySettings(cluster_cidrs=("10.244.0.0/16",), node_port_addresses=("198.18.0.0/15",))


class Speaking:
    """A source whose words a test chooses."""

    def __init__(self, *changes: Change, kinds: tuple[str, ...] = KINDS, error: Exception | None = None) -> None:
        self.changes, self.kinds, self.error = changes, kinds, error
        self.stopped = False
        self.reached_at: tuple[str, ...] = ()
        self._sink: Sink | None = None

    def start(self, sink: Sink) -> None:
        if self.error is not None:
            raise self.error
        sink.apply(self.changes)
        for kind in self.kinds:
            sink.complete(kind)
        self._sink = sink

    def __str__(self) -> str:
        return "what a test says"

    def stop(self) -> None:
        self.stopped = True

    def health(self) -> tuple[SourceHealth, ...]:
        return ()

    def addresses(self) -> tuple[str, ...]:
        return self.reached_at

    @property
    def begun(self) -> bool:
        """Whether all that is there from the start has been said."""
        return self._sink is not None

    @property
    def sink(self) -> Sink:
        assert self._sink is not None
        return self._sink


class Journal(SilentJournal):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []
        self.started: list[dict[str, object]] = []
        self.failures: list[tuple[Family, Exception]] = []

    @property
    def sentences(self) -> list[str]:
        """The advice that holds now."""
        return self.advised[-1] if self.advised else []

    def event(self, event: str, **values: object) -> None:
        self.events.append(event)
        if event == "started":
            self.started.append(values)

    def failed(self, family: Family, error: Exception, retry_seconds: float) -> None:
        self.failures.append((family, error))


def make(source: Speaking, templates: Path = TEMPLATES) -> tuple[Agent, Journal]:
    journal = Journal()
    options = AgentOptions(NODE, SETTINGS, Intervals(minimum=0.0, retry=0.05), templates)
    return Agent(source, options, journal), journal


@contextmanager
def running(source: Speaking, templates: Path = TEMPLATES) -> Iterator[Journal]:
    """An agent that works, in a thread that is in the namespace of this one."""
    agent, journal = make(source, templates)
    with working(agent, journal, source):
        yield journal


@contextmanager
def working(agent: Agent, journal: Journal, source: Speaking) -> Iterator[None]:
    """Have an agent work in a thread that is in the namespace of this one; it must not end before it is told to."""
    thread = threading.Thread(target=agent.run, name="agent")
    thread.start()
    try:
        eventually(lambda: "started" in journal.events and source.begun)
        yield
        assert thread.is_alive(), "it ended by itself"
    finally:
        agent.stop()
        thread.join(10)
    assert not thread.is_alive()
    assert source.stopped


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.005)


def holds(namespace: Namespace, name: str, word: str, family: Family = Family.IPV4, kind: str = "set") -> bool:
    """Whether a set (or map) of the table holds a word; False as well if there is none."""
    try:
        return word in namespace.run("nft", "list", kind, TABLE_FAMILY[family], "kube-proxy", name)
    except CommandError:
        return False


WEB = (node(), service("web"), endpoints("web", [1, 2]))
