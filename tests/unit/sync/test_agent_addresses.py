"""The agent and the addresses of interfaces: no change is lost, and what is known stays while they can't be listed."""

import threading
import time

import pytest

from netns.namespaces import Namespace
from nodeproxy.kernel.addresses import AddressesError, AddressWatch
from nodeproxy.sync import agent as module
from nodeproxy.sync.agent import Agent, AgentOptions
from nodeproxy.sync.runner import Intervals
from nodeproxy.sync.store import Changes, Store

from .running import SETTINGS, WEB, Journal, Speaking, eventually, holds, make, running, working
from .support import NODE, gone, node, service


@pytest.mark.parametrize("moment", ["while listing", "before planning"])
def test_change_that_is_noted_between_looking_and_planning_is_looked_at_again(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The listing that is under way does not hold it any more; nothing else would bring it up for an hour."""
    source = Speaking(*WEB)
    agent, journal = make(source)
    addresses, armed = ["198.18.0.7"], threading.Event()

    def interfere(at: str) -> None:
        if at == moment and armed.is_set():
            armed.clear()
            addresses.append("198.18.0.8")
            agent._note_addresses()

    def listing() -> tuple[str, ...]:
        found = tuple(addresses)
        interfere("while listing")
        return found

    real_take = Store.take

    def take(self: Store) -> Changes:
        interfere("before planning")
        return real_take(self)

    monkeypatch.setattr(module, "list_addresses", listing)
    monkeypatch.setattr(Store, "take", take)
    with working(agent, journal, source):
        eventually(lambda: holds(namespace, "nodeport-ips", "198.18.0.7"))
        armed.set()
        agent._note_addresses()
        eventually(lambda: not armed.is_set())
        eventually(lambda: holds(namespace, "nodeport-ips", "198.18.0.8"), 2.0)
    assert journal.failures == []


class Listing:
    """Lists addresses as they are, unless it is broken; counts how often it was asked to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broken = threading.Event()
        self.calls = 0
        self._real = module.list_addresses
        monkeypatch.setattr(module, "list_addresses", self)

    def __call__(self) -> tuple[str, ...]:
        self.calls += 1
        if self.broken.is_set():
            raise AddressesError("interrupted")
        return self._real()


def test_nothing_is_written_before_addresses_were_listed_once(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another run left in place is better than rules for no address at all (B15)."""
    namespace.ip(["link add one type veth peer name far", "addr add 198.18.0.7/15 dev one"])
    listing = Listing(monkeypatch)
    listing.broken.set()
    source = Speaking(*WEB)
    with running(source) as journal:
        eventually(lambda: listing.calls > 3)
        source.sink.apply([service("late", 9), node(zone="zone-a"), gone("Service", "web")])
        before = listing.calls
        eventually(lambda: listing.calls > before + 2)
        assert namespace.run("nft", "list", "ruleset") == ""
        assert journal.results == []
        assert {event for event, _ in journal.warned} == {"addresses unknown"}
        listing.broken.clear()
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.9"))
        assert not holds(namespace, "cluster-ips", "10.96.0.10"), "changes from before count"
        assert holds(namespace, "nodeport-ips", "198.18.0.7")


def test_last_known_addresses_go_on_while_they_cannot_be_listed_and_services_are_followed(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run counts as failed, so that it is tried again though nobody asks for it."""
    namespace.ip(["link add one type veth peer name far", "addr add 198.18.0.7/15 dev one"])
    listing = Listing(monkeypatch)
    source = Speaking(*WEB)
    with running(source) as journal:
        eventually(lambda: holds(namespace, "nodeport-ips", "198.18.0.7"))
        listing.broken.set()
        namespace.ip(["addr add 198.18.0.8/15 dev one"])
        eventually(lambda: any(event == "addresses unknown" for event, _ in journal.warned))
        source.sink.apply([service("late", 9), node(zone="zone-a"), gone("Service", "web")])
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.9"), 2.0)
        eventually(lambda: not holds(namespace, "cluster-ips", "10.96.0.10"), 2.0)
        before = listing.calls
        eventually(lambda: listing.calls > before + 2, 2.0)
        assert holds(namespace, "nodeport-ips", "198.18.0.7")
        assert not holds(namespace, "nodeport-ips", "198.18.0.8")
        listing.broken.clear()
        eventually(lambda: holds(namespace, "nodeport-ips", "198.18.0.8"), 2.0)
        assert holds(namespace, "cluster-ips", "10.96.0.9")
    assert journal.failures == []


def test_node_whose_addresses_cannot_be_followed_is_served_and_that_is_said(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = AddressWatch.start

    def start(self: AddressWatch, timeout: float = 5.0) -> bool:
        real(self, timeout)
        return False

    monkeypatch.setattr(AddressWatch, "start", start)
    with running(Speaking(*WEB)) as journal:
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.10"))
        assert [event for event, _ in journal.warned] == ["addresses are not followed"]


def test_addresses_that_change_while_nothing_is_complete_yet_start_no_run(namespace: Namespace) -> None:
    source = Speaking(*WEB, kinds=())
    agent, journal = make(source)
    with working(agent, journal, source):
        agent._note_addresses()
        time.sleep(0.1)
        assert namespace.run("nft", "list", "ruleset") == ""


class _Noted(Agent):
    """An agent to which a change of addresses is noted right after it has asked whether there was one."""

    armed = False
    _flag = False

    @property
    def _addresses_changed(self) -> bool:
        found = self._flag
        if self.armed:
            self.armed = False
            self._note_addresses()
        return found

    @_addresses_changed.setter
    def _addresses_changed(self, value: bool) -> None:
        self._flag = value


@pytest.mark.usefixtures("namespace")
def test_change_that_is_noted_while_the_agent_asks_for_one_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = Listing(monkeypatch)
    source, journal = Speaking(*WEB), Journal()
    agent = _Noted(source, AgentOptions(NODE, SETTINGS, Intervals(minimum=0.0, retry=0.05)), journal)
    with working(agent, journal, source):
        eventually(lambda: len(journal.results) >= 2)
        before = listing.calls
        agent.armed = True
        source.sink.apply([service("late", 9)])
        eventually(lambda: listing.calls > before, 2.0)
