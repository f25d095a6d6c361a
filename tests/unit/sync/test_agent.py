"""The agent as a whole, with a source that a test speaks through, in a namespace of its own."""

import threading
import time

import pytest

from netns.namespaces import Namespace
from nodeproxy import __version__
from nodeproxy.kernel.errors import TransactionError
from nodeproxy.kernel.nft import Nft
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.objects import KINDS
from nodeproxy.kube.source import SourceError
from nodeproxy.model.node import UnsupportedFamilyError
from nodeproxy.ruleset import diff
from nodeproxy.ruleset.render import TemplateError
from nodeproxy.sync import agent as module
from nodeproxy.sync.proxier import Proxier

from .running import WEB, Journal, Speaking, eventually, holds, make, running
from .support import NODE, gone, node, service


@pytest.mark.parametrize("missing", KINDS)
def test_nothing_is_written_before_every_kind_is_complete(namespace: Namespace, missing: str) -> None:
    source = Speaking(*WEB, kinds=tuple(kind for kind in KINDS if kind != missing))
    with running(source):
        time.sleep(0.1)
        assert namespace.run("nft", "list", "ruleset") == ""
        source.sink.complete(missing)
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.10"))


def test_both_families_are_kept_and_changes_followed(namespace: Namespace) -> None:
    source = Speaking(*WEB)
    with running(source) as journal:
        eventually(lambda: {result.family for result in journal.results} == set(Family))
        source.sink.apply([service("six", 6, family=Family.IPV6), service("four", 4)])
        eventually(lambda: holds(namespace, "cluster-ips", "fd00:96::6", Family.IPV6))
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.4"))
        source.sink.apply([gone("Service", "four")])
        eventually(lambda: not holds(namespace, "cluster-ips", "10.96.0.4"))
    assert holds(namespace, "cluster-ips", "10.96.0.10"), "rules stay when it ends"
    assert journal.failures == []


def test_new_address_of_an_interface_accepts_node_ports_within_a_second(namespace: Namespace) -> None:
    namespace.ip(["link add one type veth peer name far"])
    with running(Speaking(*WEB)) as journal:
        eventually(lambda: len(journal.results) >= 2)
        assert not holds(namespace, "nodeport-ips", "198.18.0.7")
        namespace.ip(["addr add 198.18.0.7/15 dev one"])
        eventually(lambda: holds(namespace, "nodeport-ips", "198.18.0.7"), 1.0)
        namespace.ip(["addr del 198.18.0.7/15 dev one"])
        eventually(lambda: not holds(namespace, "nodeport-ips", "198.18.0.7"), 1.0)


@pytest.fixture
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes out of use is deleted soon."""
    monkeypatch.setattr(diff, "SLOT_GRACE", 0.05)
    monkeypatch.setattr(diff, "CHAIN_GRACE", 0.1)


@pytest.mark.usefixtures("_no_grace")
def test_unused_chains_are_deleted_without_anyone_asking(namespace: Namespace) -> None:
    source = Speaking(*WEB)
    with running(source):
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.10"))
        source.sink.apply([gone("Service", "web")])
        eventually(lambda: "/web/" not in namespace.run("nft", "list", "chains", "ip"), 2.0)


@pytest.mark.parametrize("error", [TransactionError("No"), TemplateError("firewall.nft.j2:1: broken")])
def test_family_that_fails_does_not_stop_the_other_and_is_tried_again(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    broken = threading.Event()
    broken.set()
    real = Proxier.sync

    def sync(self: Proxier) -> None:
        if self.family is Family.IPV4 and broken.is_set():
            raise error
        real(self)

    monkeypatch.setattr(Proxier, "sync", sync)
    source = Speaking(*WEB, service("six", 6, family=Family.IPV6))
    with running(source) as journal:
        eventually(lambda: holds(namespace, "cluster-ips", "fd00:96::6", Family.IPV6))
        eventually(lambda: len(journal.failures) > 2)
        assert {family for family, _ in journal.failures} == {Family.IPV4}
        source.sink.apply([service("late", 9)])
        broken.clear()
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.9"))
        assert holds(namespace, "cluster-ips", "10.96.0.10")


def test_family_that_is_off_has_no_table(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ipv6_usable", lambda: False)
    with running(Speaking(*WEB)):
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.10"))
        assert namespace.run("nft", "list", "tables").strip() == "table ip kube-proxy"


@pytest.mark.usefixtures("namespace")
def test_node_whose_primary_family_is_off_cannot_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ipv6_usable", lambda: False)
    source = Speaking(node(addresses=["2001:db8::1"]))
    agent, _ = make(source)
    with pytest.raises(UnsupportedFamilyError, match="IPv6"):
        agent.run()
    assert source.stopped


@pytest.mark.usefixtures("namespace")
def test_source_that_cannot_work_ends_the_agent_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    agent, _ = make(Speaking(error=SourceError("no such folder")))
    with pytest.raises(SourceError, match="no such folder"):
        agent.run()
    assert [thread for thread in threading.enumerate() if thread not in before] == []


def test_node_that_is_missing_is_pointed_out_and_services_are_served(namespace: Namespace) -> None:
    source = Speaking(*WEB[1:])
    with running(source) as journal:
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.10"))
        eventually(lambda: any(f"there is no Node {NODE}" in sentence for sentence in journal.sentences))
        source.sink.apply([node()])
        eventually(lambda: not any("no Node" in sentence for sentence in journal.sentences))


@pytest.mark.usefixtures("namespace")
def test_advice_follows_services_that_go_and_come() -> None:
    source = Speaking(*WEB)
    with running(source) as journal:
        eventually(lambda: len(journal.results) >= 2)
        assert not any("no Service at all" in sentence for sentence in journal.sentences)
        source.sink.apply([gone("Service", "web")])
        eventually(lambda: any("no Service at all" in sentence for sentence in journal.sentences))
        source.sink.apply([service("web")])
        eventually(lambda: not any("no Service at all" in sentence for sentence in journal.sentences))


def test_advice_follows_addresses_of_interfaces(namespace: Namespace) -> None:
    namespace.ip(["link add one type veth peer name far"])
    with running(Speaking(*WEB)) as journal:
        eventually(lambda: any("NodePorts are not served over IPv4" in sentence for sentence in journal.sentences))
        namespace.ip(["addr add 198.18.0.7/15 dev one"])
        eventually(lambda: not any("NodePorts are not served" in sentence for sentence in journal.sentences))


@pytest.mark.usefixtures("namespace")
def test_source_that_is_reached_through_a_service_is_pointed_out_as_long_as_it_is() -> None:
    def said(journal: Journal) -> bool:
        return any("one of Service ns/web" in sentence for sentence in journal.sentences)

    source = Speaking(*WEB)
    source.reached_at = ("10.96.0.10",)
    with running(source) as journal:
        eventually(lambda: said(journal))
        source.sink.apply([gone("Service", "web")])
        eventually(lambda: not said(journal))
        source.sink.apply([service("other", 11), service("web")])
        eventually(lambda: said(journal))
        source.reached_at = ("192.0.2.1",)  # as when a name is given another address
        source.sink.apply([service("third", 12)])
        eventually(lambda: not said(journal))


@pytest.mark.usefixtures("namespace")
def test_start_says_what_runs_where_and_from_which_source() -> None:
    with running(Speaking(*WEB)) as journal:
        (values,) = journal.started
    assert values["node"] == NODE
    assert values["source"] == "what a test says"
    assert values["version"] == __version__
    assert values["libnftables"]


@pytest.mark.usefixtures("_no_grace")
def test_failed_tidying_is_followed_by_a_full_sync_soon(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what could not be deleted would stay until something else changes, or for an hour."""
    refused = threading.Event()
    real = Nft.run

    def run(self: Nft, text: str) -> None:
        if "delete chain" in text and not refused.is_set():
            refused.set()
            raise TransactionError("No")
        real(self, text)

    monkeypatch.setattr(Nft, "run", run)
    source = Speaking(*WEB)
    with running(source) as journal:
        eventually(lambda: len(journal.results) >= 2)
        source.sink.apply([gone("Service", "web")])
        eventually(lambda: bool(journal.tidying_failures), 2.0)
        eventually(lambda: sum(result.full for result in journal.results) > 2, 2.0)  # each family began with one
        eventually(lambda: "/web/" not in namespace.run("nft", "list", "chains", "ip"), 2.0)
    assert journal.failures == []
