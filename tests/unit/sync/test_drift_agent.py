"""The agent corrects at once what another program changes in its tables, only that, and says who it was."""

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from netns.monitor import Line, Monitor, declares
from netns.namespaces import Namespace
from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.watch import TableWatch, WatchError
from nodeproxy.kube.addresses import Family
from nodeproxy.sync.agent import Agent, AgentOptions
from nodeproxy.sync.proxier import Proxier
from nodeproxy.sync.runner import Intervals, SystemClock

from .running import SETTINGS, Journal, Speaking, eventually, working
from .support import NODE, TABLE_FAMILY, V4, V6, endpoints, node, service, shop, view

pytestmark = pytest.mark.usefixtures("namespace")

SLOW = Intervals(minimum=3600.0, retry=3600.0, maximum=7200.0)  # so that nothing but foreign changes causes a sync
CORRECTED = "foreign change corrected"


def nft(text: str, program: str = "nft") -> None:
    """Have a transaction made by nft, or a program that is nft under another name."""
    subprocess.run([program, "-f", "-"], input=text, text=True, check=True, timeout=20)


class Running:
    """An agent that works on a cluster with Services of every form."""

    def __init__(self, agent: Agent, journal: Journal, source: Speaking) -> None:
        self.agent, self.journal, self.source = agent, journal, source

    def corrections(self, family: Family | None = None) -> list[dict[str, Any]]:
        lines = [dict(values) for event, values in self.journal.warned if event == CORRECTED]
        return [line for line in lines if family is None or line["family"] == family.label]

    def is_in_step(self) -> bool:
        return len(self.journal.results) >= 2

    def wait_for_corrections(self, count: int = 1) -> list[dict[str, Any]]:
        eventually(lambda: len(self.corrections()) >= count, 20)
        return self.corrections()


@contextmanager
def running(intervals: Intervals = SLOW, clock: SystemClock | None = None) -> Iterator[Running]:
    source = Speaking(*shop(V4), service("six", 40, family=V6), endpoints("six", [1, 2], family=V6))
    journal = Journal()
    agent = Agent(source, AgentOptions(NODE, SETTINGS, intervals), journal, clock)
    with working(agent, journal, source):
        found = Running(agent, journal, source)
        eventually(found.is_in_step, 20)
        yield found


def settled(namespace: Namespace, change: str) -> tuple[list[Line], float]:
    """The lines that were written after a foreign change, those of the change first; and when it was made."""
    with Monitor(namespace) as monitor:
        begun = time.monotonic()
        nft(change)
        monitor.wait_quiet(4.0)
        return monitor.lines(), begun


HARM = {
    "ruleset flushed": "flush ruleset",
    "table deleted": "delete table ip kube-proxy",
    "all rules flushed": "flush table ip kube-proxy",
    "table dormant": "add table ip kube-proxy { flags dormant; }",
    "chain flushed": "flush chain ip kube-proxy services",
    "rule inserted": "insert rule ip kube-proxy services drop",
    "rule replaced": "flush chain ip kube-proxy services; add rule ip kube-proxy services accept",
    "foreign chain": "add chain ip kube-proxy stranger",
    "foreign base chain": "add chain ip kube-proxy stranger { type filter hook input priority 0; policy drop; }",
    "element gone": "delete element ip kube-proxy cluster-ips { 10.96.0.2 }",
    "element added": "add element ip kube-proxy cluster-ips { 192.0.2.99 }",
    "element changed": "delete element ip kube-proxy service-nodeports { tcp . 30006 };"
    " add element ip kube-proxy service-nodeports { tcp . 30006 : drop }",
    "map emptied": "flush map ip kube-proxy service-ips",
    "slots emptied": "flush map ip kube-proxy endpoints-tcp-0",
    "set deleted": "flush chain ip kube-proxy masquerading; flush table ip kube-proxy;"
    " delete set ip kube-proxy cluster-ips",
    "foreign set": "add set ip kube-proxy stranger { type mark; }",
}


@pytest.mark.parametrize("change", HARM.values(), ids=HARM.keys())
def test_whatever_is_changed_is_corrected_whatever_the_minimum_between_syncs(change: str) -> None:
    with running() as found:
        before = view(V4), view(V6)
        begun = time.monotonic()
        nft(change)
        line = found.wait_for_corrections()[0]
        print(f"corrected {time.monotonic() - begun:.3f} s after the change began")
        assert line["programs"] == ["nft"]
        assert line["family"] == "IPv4"
        assert line["cause"] == "foreign change"
        assert line["found"]
        eventually(lambda: (view(V4), view(V6)) == before, 20)  # chains that go are deleted a little later
    assert found.agent.foreign_changes[V4, "nft"] >= 1


@pytest.mark.parametrize(
    ("change", "written"),
    [
        (
            "delete element ip kube-proxy cluster-ips { 10.96.0.2 }",
            ["add element ip kube-proxy cluster-ips { 10.96.0.2 }"],
        ),
        (
            "add element ip kube-proxy cluster-ips { 192.0.2.99 }",
            ["delete element ip kube-proxy cluster-ips { 192.0.2.99 }"],
        ),
        ("add chain ip kube-proxy stranger", ["delete chain ip kube-proxy stranger"]),
        ("add table ip kube-proxy { flags dormant; }", []),
    ],
)
def test_only_what_differs_is_written(namespace: Namespace, change: str, written: list[str]) -> None:
    with running():
        lines, begun = settled(namespace, change)
        texts = [line.text for line in lines if not declares(line)]
        own = texts if change.startswith("add table") else texts[1:]
        assert own == written
        print(f"first correction {lines[1].at - begun:.3f} s after the change began")


def test_only_the_rules_of_the_changed_chain_are_written(namespace: Namespace) -> None:
    with running():
        lines, _ = settled(namespace, "insert rule ip kube-proxy masquerading counter")
        own = [line.text for line in lines[1:] if not declares(line)]
        assert own
        assert all(" ip kube-proxy masquerading " in f"{text} " for text in own), own


def test_nothing_is_written_when_a_change_leaves_nothing_to_correct(namespace: Namespace) -> None:
    with running() as found:
        lines, _ = settled(
            namespace,
            "add chain ip kube-proxy passing; delete chain ip kube-proxy passing; add table ip6 kube-proxy-2",
        )
        assert [line.text for line in lines if "passing" not in line.text and "kube-proxy-2" not in line.text] == []
        assert found.corrections() == []


def test_the_program_is_named_and_counted(tmp_path: Path) -> None:
    program = tmp_path / "firewalld"
    program.symlink_to(shutil.which("nft") or "/usr/sbin/nft")
    with running() as found:
        nft("flush ruleset", program=str(program))
        lines = found.wait_for_corrections(2)
        assert {line["family"] for line in lines} == {"IPv4", "IPv6"}
        assert all(line["programs"] == ["firewalld"] for line in lines)
        assert dict(found.agent.foreign_changes) == {(V4, "firewalld"): 1, (V6, "firewalld"): 1}


def test_own_changes_are_never_taken_for_foreign_ones() -> None:
    with running(Intervals(minimum=0.0, retry=0.05)) as found:
        for number in range(20):
            found.source.sink.apply([service(f"s{number}", 50 + number), endpoints(f"s{number}", [1, 2, number + 3])])
            count = len(found.journal.results)
            eventually(lambda before=count: len(found.journal.results) >= before + 2, 20)
        time.sleep(0.3)
        assert not found.agent.foreign_changes
        assert found.corrections() == []


def test_a_change_to_one_family_leaves_the_other_alone() -> None:
    with running() as found:
        count = len([result for result in found.journal.results if result.family is V4 and result.transactions])
        nft("flush chain ip6 kube-proxy services")
        assert [line["family"] for line in found.wait_for_corrections()] == ["IPv6"]
        written = [result for result in found.journal.results if result.family is V4 and result.transactions]
        assert len(written) == count


def _edit() -> None:
    """Edit rules under their comments, as who saves the ruleset, edits it and loads it again over what is there."""
    saved = subprocess.run(
        ["nft", "list", "chain", "ip", "kube-proxy", "masquerading"], check=True, capture_output=True, text=True
    ).stdout
    assert "masquerade" in saved
    edited = saved.replace("masquerade fully-random", "accept").replace("masquerade comment", "accept comment")
    assert edited != saved
    nft(f"flush chain ip kube-proxy masquerading\n{edited}")


def test_rules_edited_under_their_comments_are_written_again() -> None:
    with running() as found:
        before = view(V4)
        _edit()
        found.wait_for_corrections()
        eventually(lambda: view(V4) == before, 20)


def test_rules_edited_just_before_the_hourly_look_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Word of them waits then, since they were corrected just now; their comments say that they are ours."""
    with running(Intervals(minimum=0.0, retry=3600.0, maximum=7200.0)) as found:
        before = view(V4)["chain masquerading"]
        nft("flush chain ip kube-proxy masquerading")
        found.wait_for_corrections()
        _edit()
        eventually(lambda: any(found.agent._drift.waiting(V4)), 5)
        monkeypatch.setattr(Proxier, "full_sync_due", lambda _: 0.0)
        looked = len(found.journal.results)
        found.source.sink.apply([service("new", 99)])
        eventually(lambda: any(r.full and r.family is V4 for r in found.journal.results[looked:]), 5)
        monkeypatch.undo()
        eventually(lambda: view(V4)["chain masquerading"] == before, 20)


def test_a_program_that_keeps_changing_is_not_fought_at_full_speed() -> None:
    stop = threading.Event()

    def keep_changing() -> None:
        while not stop.wait(0.05):
            nft("flush chain ip kube-proxy services")

    with running() as found:
        changing = threading.Thread(target=keep_changing)
        begun = time.monotonic()
        changing.start()
        try:
            eventually(lambda: "another program keeps changing the table" in [e for e, _ in found.journal.warned], 30)
        finally:
            stop.set()
            changing.join(20)
        spent = time.monotonic() - begun
        assert spent > 2.9, "pauses of one and of two seconds come before"
        assert len(found.corrections()) <= 4
        assert found.agent.foreign_changes[V4, "nft"] > len(found.corrections())


def test_a_partial_sync_that_meets_a_lost_table_becomes_a_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when nothing has been heard of the loss."""
    monkeypatch.setattr(TableWatch, "take", lambda _: [])
    with running(Intervals(minimum=0.0, retry=3600.0, maximum=7200.0)) as found:
        nft("flush ruleset")
        found.source.sink.apply([service("new", 99), endpoints("new", [1, 2, 3])])
        eventually(lambda: bool(found.journal.results) and "10.96.0.99" in str(_listing("ip")), 20)
        assert "10.96.0.2" in _listing("ip")


def _listing(family: str) -> str:
    done = subprocess.run(
        ["nft", "list", "table", family, "kube-proxy"], capture_output=True, text=True, check=False, timeout=20
    )
    return done.stdout


def test_without_a_listener_tables_are_looked_at_every_retry_interval_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: TableWatch) -> None:
        msg = "listening to changes of nftables: Operation not permitted"
        raise WatchError(msg)

    monkeypatch.setattr(TableWatch, "start", refuse)
    with running(Intervals(minimum=0.0, retry=0.3, maximum=3600.0)) as found:
        warning = next(values for event, values in found.journal.warned if "not heard of" in event)
        assert warning["error"] == "listening to changes of nftables: Operation not permitted"
        assert warning["effect"] == "the tables are looked at every 0.3 s instead"
        before = view(V4)
        nft("flush chain ip kube-proxy services")
        line = found.wait_for_corrections()[0]
        assert line["programs"] == ["unknown"]
        assert line["cause"] == "found by an audit"
        eventually(lambda: view(V4) == before, 20)
        assert found.agent.foreign_changes[V4, ""] == 1


def test_a_listener_that_breaks_is_replaced_by_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(Intervals(minimum=0.0, retry=0.3, maximum=3600.0)) as found:

        def broken(_: memoryview) -> object:
            raise OSError(12, "Cannot allocate memory")

        monkeypatch.setattr("nodeproxy.kernel.watch._messages", broken)
        nft("add table ip unrelated")
        eventually(lambda: any("not heard of" in event for event, _ in found.journal.warned), 20)
        nft("flush chain ip kube-proxy services")
        assert found.wait_for_corrections()[0]["programs"] == ["unknown"]


def test_lost_messages_lead_to_a_look_at_both_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as found:
        nft("flush chain ip kube-proxy services; flush chain ip6 kube-proxy services")
        found.wait_for_corrections(2)
        time.sleep(1.2)
        count = len(found.journal.results)
        found.agent._watch._lose()
        eventually(lambda: len(found.journal.results) >= count + 2, 20)
        assert all(result.full and not result.transactions for result in found.journal.results[count:])


def test_the_listener_is_gone_when_the_agent_has_ended() -> None:
    with running() as found:
        assert any(thread.name == "table-watch" for thread in threading.enumerate())
        begun = time.monotonic()
    assert time.monotonic() - begun < 10
    assert not any(thread.name == "table-watch" for thread in threading.enumerate())
    assert not found.agent._watch.working


def test_changes_before_everything_has_been_listed_lead_to_nothing() -> None:
    """The tables of an earlier run stay as they are, until it is known what they should be."""
    setup = Nft()
    setup.run("add table ip kube-proxy\nadd chain ip kube-proxy services")
    source, journal = Speaking(node(), kinds=()), Journal()
    agent = Agent(source, AgentOptions(NODE, SETTINGS, SLOW), journal)
    with working(agent, journal, source):
        nft("add rule ip kube-proxy services accept")
        time.sleep(0.5)
        assert journal.results == []
        assert "accept" in _listing(TABLE_FAMILY[V4])
