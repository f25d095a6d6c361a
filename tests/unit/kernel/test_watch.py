"""Word of foreign changes: of every kind, by program, never of our own, and what becomes of too many."""

import errno
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from netns.namespaces import Namespace
from nodeproxy.kernel import watch as watch_module
from nodeproxy.kernel.errors import TransactionError
from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.watch import Disturbance, TableWatch, WatchError
from nodeproxy.kube.addresses import Family

V4, V6 = Family.IPV4, Family.IPV6
SET_UP = """
add table ip kube-proxy
add chain ip kube-proxy services
add rule ip kube-proxy services accept comment "one"
add set ip kube-proxy addresses { type ipv4_addr; }
add element ip kube-proxy addresses { 192.0.2.1 }
add map ip kube-proxy ports { type inet_service : verdict; }
add table ip6 kube-proxy
add chain ip6 kube-proxy services
"""


class Watched:
    """A watch, its own context of libnftables, and how often it called."""

    def __init__(self, start: bool = True) -> None:
        self.called = threading.Event()
        self.watch = TableWatch(self.called.set)
        self.nft = Nft()
        self.nft.run(SET_UP)
        self.nft.follow_port(self.watch.own)
        if start:
            self.watch.start()

    def heard(self, program: str = "nft") -> list[Disturbance]:
        """What has been heard of until a program's change, which must come within 10 s."""
        found: list[Disturbance] = []
        deadline = time.monotonic() + 10
        while not any(heard.program == program for heard in found):
            assert self.called.wait(max(0.0, deadline - time.monotonic())), f"nothing was heard of {program}: {found}"
            self.called.clear()
            found += self.watch.take()
        return found


@pytest.fixture
def watched(namespace: Namespace) -> Iterator[Watched]:
    found = Watched()
    yield found
    found.watch.stop()


def nft(text: str) -> None:
    subprocess.run(["nft", text], check=True, timeout=20)


@pytest.mark.parametrize(
    ("change", "chains"),
    [
        ("flush ruleset", {"services"}),
        ("delete table ip kube-proxy", {"services"}),
        ("add table ip kube-proxy { flags dormant; }", set()),
        ("add chain ip kube-proxy stranger", set()),
        ("add chain ip kube-proxy hooked { type filter hook input priority 0; }", set()),
        ("flush chain ip kube-proxy services", {"services"}),
        ("add rule ip kube-proxy services drop", {"services"}),
        ("insert rule ip kube-proxy services drop", {"services"}),
        ("rename chain ip kube-proxy services other", set()),
        ("add element ip kube-proxy addresses { 192.0.2.2 }", set()),
        ("delete element ip kube-proxy addresses { 192.0.2.1 }", set()),
        ("flush set ip kube-proxy addresses", set()),
        ("delete set ip kube-proxy addresses", set()),
        ("add set ip kube-proxy more { type ipv4_addr; }", set()),
        ("add element ip kube-proxy ports { 80 : drop }", set()),
        ("delete map ip kube-proxy ports", set()),
        ("add counter ip kube-proxy traffic", set()),
    ],
)
def test_a_change_of_any_kind_is_heard_of_with_the_name_of_the_program(
    watched: Watched, change: str, chains: set[str]
) -> None:
    nft(change)
    first = watched.heard()[0]
    assert first.family is V4
    assert (first.program, first.lost, first.transactions) == ("nft", False, 1)
    assert first.chains == chains


def test_a_change_of_one_family_does_not_concern_the_other(watched: Watched) -> None:
    nft("add chain ip6 kube-proxy stranger")
    assert [heard.family for heard in watched.heard()] == [V6]


def test_a_transaction_on_both_families_concerns_both(watched: Watched) -> None:
    nft("flush ruleset")
    assert [heard.family for heard in watched.heard()] == [V4, V6]


def test_tables_of_others_do_not_concern_us(watched: Watched) -> None:
    nft("add table inet kube-proxy; add table ip kube-proxy-2; add table ip kube; add chain ip kube-proxy-2 services")
    nft("add chain ip6 kube-proxy marker")
    assert watched.heard() == [Disturbance(V6, "nft")]


def test_several_changes_of_one_program_are_counted_together(watched: Watched) -> None:
    for host in range(5, 10):
        nft(f"add element ip kube-proxy addresses {{ 192.0.2.{host} }}")
    found: list[Disturbance] = []
    deadline = time.monotonic() + 10
    while sum(heard.transactions for heard in found) < 5 and time.monotonic() < deadline:
        watched.called.wait(0.05)
        found += watched.watch.take()
    assert sum(heard.transactions for heard in found) == 5
    assert {heard.program for heard in found} == {"nft"}


def quiet_until_mark(watched: Watched) -> None:
    """Nothing but a change that is made now is heard of."""
    nft("add chain ip6 kube-proxy marker")
    assert watched.heard() == [Disturbance(V6, "nft")]


def test_own_changes_are_not_heard_of(watched: Watched) -> None:
    watched.nft.run("add chain ip kube-proxy ours\nadd rule ip kube-proxy ours accept")
    watched.nft.run("delete table ip kube-proxy\nadd table ip kube-proxy")
    quiet_until_mark(watched)


def test_own_changes_are_not_heard_of_after_an_error_replaced_the_context(watched: Watched) -> None:
    for number in range(12):
        with pytest.raises(TransactionError):
            watched.nft.run("add rule ip kube-proxy missing accept")
        watched.nft.run(f"add chain ip kube-proxy ours-{number}")
    quiet_until_mark(watched)


def test_own_changes_are_not_heard_of_through_a_context_that_is_older_than_the_watch(namespace: Namespace) -> None:
    watched = Watched(start=False)
    watched.watch.start()
    try:
        watched.nft.run("add chain ip kube-proxy ours")
        quiet_until_mark(watched)
    finally:
        watched.watch.stop()


def test_own_changes_do_not_even_wake_the_thread(watched: Watched) -> None:
    received: list[int] = []
    original = watch_module._messages
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_module, "_messages", lambda data: received.append(len(data)) or original(data))
        for number in range(20):
            watched.nft.run(f"add chain ip kube-proxy ours-{number}")
        quiet_until_mark(watched)
    assert len(received) <= 2  # the mark, and its end


def test_own_changes_are_told_apart_where_the_kernel_takes_no_filter(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "_SO_ATTACH_FILTER", 9999)
    watched = Watched()
    try:
        watched.nft.run("add chain ip kube-proxy ours")
        quiet_until_mark(watched)
    finally:
        watched.watch.stop()


def test_own_changes_are_told_apart_when_their_port_becomes_known_only_afterwards(namespace: Namespace) -> None:
    watched = Watched(start=False)
    watched.watch.start()
    stranger = Nft()
    stranger.run("add chain ip kube-proxy ours")
    assert watched.called.wait(10)
    stranger.follow_port(watched.watch.own)
    assert watched.watch.take() == []
    watched.watch.stop()


def test_adopt_sockets_are_ports_that_no_process_gets_by_itself(namespace: Namespace) -> None:
    ports: list[int] = []
    context = Nft()
    context.follow_port(ports.append)
    context.run("add table ip kube-proxy")
    with pytest.raises(TransactionError):
        context.run("bogus")
    context.run("add table ip kube-proxy")
    assert len(set(ports)) >= 2
    assert all(1 << 30 <= port < 1 << 31 for port in ports)


def test_events_that_the_kernel_could_not_deliver_count_as_a_change_of_both_families(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, release = threading.Event(), threading.Event()
    original: Callable[..., object] = watch_module._messages

    def slow(data: memoryview) -> object:
        entered.set()
        assert release.wait(20)
        return original(data)

    monkeypatch.setattr(watch_module, "_SO_RCVBUFFORCE", socket.SO_RCVBUF)
    monkeypatch.setattr(watch_module, "_RECEIVE_BUFFER", 2048)
    monkeypatch.setattr(watch_module, "_messages", slow)
    watched = Watched()
    try:
        nft("add chain ip kube-proxy first")
        assert entered.wait(10)
        nft(
            "; ".join(f"add element ip kube-proxy addresses {{ 198.51.{i}.{j} }}" for i in range(4) for j in range(250))
        )
        release.set()
        lost = _lost(watched)
        assert {heard.family for heard in lost} == {V4, V6}
        assert all(heard.chains is None for heard in lost)
        watched.called.clear()
        nft("add chain ip6 kube-proxy marker")
        assert any(heard.program == "nft" for heard in watched.heard())
    finally:
        release.set()
        watched.watch.stop()


def test_loss_is_told_of_only_when_the_kernel_tells_again(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looked at the table earlier would miss what the kernel still kept to itself then."""
    entered, release = _held_up(monkeypatch, 2048)
    watched = Watched()
    try:
        nft("add chain ip kube-proxy first")
        assert entered.acquire(timeout=10)
        nft(
            "; ".join(f"add element ip kube-proxy addresses {{ 198.51.{i}.{j} }}" for i in range(4) for j in range(250))
        )
        release.release()
        assert entered.acquire(timeout=10)  # with what came before the buffer was full
        nft("add chain ip6 kube-proxy untold")
        assert not any(heard.lost for heard in watched.watch.take())
        release.release(1000)
        assert _lost(watched)
    finally:
        release.release(1000)
        watched.watch.stop()


def test_what_the_kernel_keeps_to_itself_after_an_early_word_of_loss_is_told_of_as_well(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where reading what waits takes long, a loss is told of before the kernel tells again: that must not be all."""
    monkeypatch.setattr(watch_module, "_LONGEST_OVERRUN", 0.0)
    entered, release = _held_up(monkeypatch, 8192)
    watched = Watched()
    try:
        nft("add chain ip kube-proxy first")
        assert entered.acquire(timeout=10)
        for number in range(10):  # of different transactions, so that several wait
            nft(f"add element ip kube-proxy addresses {{ 198.51.100.{number} }}")
        elements = (f"198.51.{i}.{j}" for i in range(4) for j in range(250))
        nft("; ".join(f"add element ip kube-proxy addresses {{ {element} }}" for element in elements))
        release.release()
        assert entered.acquire(timeout=10)
        watched.called.wait(10)
        early = watched.watch.take()
        assert any(heard.lost for heard in early)
        nft("add chain ip6 kube-proxy untold")
        release.release(1000)
        assert any(heard.family is V6 for heard in _lost(watched))
    finally:
        release.release(1000)
        watched.watch.stop()


def _held_up(monkeypatch: pytest.MonkeyPatch, room: int) -> tuple[threading.Semaphore, threading.Semaphore]:
    """Have the watch wait before it reads each batch of messages, while the kernel has little room for more.

    Returns:
        what is released when it waits, and what lets it go on.
    """
    entered, release = threading.Semaphore(0), threading.Semaphore(0)
    original: Callable[..., object] = watch_module._messages

    def slow(data: memoryview) -> object:
        entered.release()
        assert release.acquire(timeout=20)
        return original(data)

    monkeypatch.setattr(watch_module, "_SO_RCVBUFFORCE", socket.SO_RCVBUF)
    monkeypatch.setattr(watch_module, "_RECEIVE_BUFFER", room)
    monkeypatch.setattr(watch_module, "_messages", slow)
    return entered, release


def _lost(watched: Watched) -> list[Disturbance]:
    """Word of a loss, which must come within 10 s."""
    found: list[Disturbance] = []
    deadline = time.monotonic() + 10
    while not any(heard.lost for heard in found) and time.monotonic() < deadline:
        watched.called.wait(0.05)
        found += watched.watch.take()
    return [heard for heard in found if heard.lost]


def test_chains_are_not_named_when_they_are_too_many(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "_MOST_CHAINS", 3)
    watched = Watched()
    try:
        nft("; ".join(f"add chain ip kube-proxy c{i}; add rule ip kube-proxy c{i} accept" for i in range(5)))
        assert watched.heard()[0].chains is None
    finally:
        watched.watch.stop()


def test_what_nobody_takes_does_not_pile_up(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "_MOST_KINDS", 3)
    watched = Watched()
    try:
        for number in range(8):
            nft(f"add chain ip kube-proxy c{number}")  # each process has a port of its own
        deadline = time.monotonic() + 10
        while sum(record.transactions for record in watched.watch._records.values()) < 8:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(watched.watch._records) <= 4
        assert sum(heard.transactions for heard in watched.watch.take()) == 8
        assert watched.watch.take() == []
    finally:
        watched.watch.stop()


def test_without_permission_the_watch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        def setsockopt(self, level: int, option: int, value: object) -> None:  # type: ignore[override]
            if level == 270:
                raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(watch_module.socket, "socket", Refusing)
    watch = TableWatch(lambda: None)
    with pytest.raises(WatchError, match="listening to changes of nftables: Operation not permitted"):
        watch.start()
    assert not watch.working
    watch.stop()


def test_a_watch_that_breaks_says_so_and_calls(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: memoryview) -> object:
        raise OSError(errno.ENOMEM, "out of memory")

    watched = Watched()
    try:
        assert watched.watch.working
        monkeypatch.setattr(watch_module, "_messages", broken)
        nft("add chain ip kube-proxy stranger")
        assert watched.called.wait(10)
        assert not watched.watch.working
        assert [heard.lost for heard in watched.watch.take()] == [True, True]
    finally:
        watched.watch.stop()


def test_stopping_is_prompt_and_closes_the_socket(namespace: Namespace) -> None:
    watched = Watched()
    sock = watched.watch._socket
    assert sock is not None
    begun = time.monotonic()
    watched.watch.stop()
    watched.watch.stop()
    assert time.monotonic() - begun < 1.5
    assert sock.fileno() == -1
    assert not any(thread.name == "table-watch" for thread in threading.enumerate())
