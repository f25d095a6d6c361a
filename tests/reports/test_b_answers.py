"""Transactions and dumps: answers that are lost, dumps that are interrupted, and failures that last."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyroute2.netlink.exceptions import NetlinkDumpInterrupted

from netns.namespaces import CommandError, Namespace
from nodeproxy.kernel import addresses, netlink
from nodeproxy.kernel import nft as module
from nodeproxy.kernel.addresses import AddressesError, list_addresses
from nodeproxy.kernel.errors import KernelError, OutcomeUnknownError, ReadBackError, TransactionError
from nodeproxy.kernel.netlink import DumpInterruptedError, NftSocket
from nodeproxy.kernel.nft import Nft
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Change
from unit.sync.running import WEB, Speaking, eventually, holds, running
from unit.sync.support import V4, V6, Table, endpoints, expected, gone, run, service, statements, view

pytestmark = pytest.mark.usefixtures("namespace")

families = pytest.mark.parametrize("family", [V4, V6], ids=["IPv4", "IPv6"])


# --- B13: an answer that is lost --------------------------------------------------------------------------------------


class Deaf:
    """A libnftables context whose next answers get lost, though the kernel has done what it was asked to.

    Attributes:
        asked: transactions that were sent.
    """

    lose = 0
    asked = 0
    real: Callable[[], Any]

    def __init__(self) -> None:
        self._context = Deaf.real()

    def cmd(self, text: str) -> tuple[int, str, str]:
        code, output, error = self._context.cmd(text)
        Deaf.asked += 1
        if Deaf.lose and code == 0:
            Deaf.lose -= 1
            return -1, "", "netlink: Error: Could not process rule: No buffer space available\n"
        return code, output, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> type[Deaf]:
    Deaf.real = staticmethod(module._new_context)
    Deaf.lose = Deaf.asked = 0
    monkeypatch.setattr(module, "_new_context", Deaf)
    return Deaf


def test_b13_lost_answer_is_of_unknown_outcome_and_the_transaction_is_not_sent_again(deaf: type[Deaf]) -> None:
    """siderolabs/talos#14001; google/nftables#103, #235, #350: 'No buffer space available', yet it had been applied."""
    deaf.lose = 1
    with pytest.raises(OutcomeUnknownError):
        Nft().run("add table ip t\nadd chain ip t c\n")
    assert deaf.asked == 1
    assert "chain c" in run("nft", "list", "table", "ip", "t")


@families
@pytest.mark.parametrize("first", [True, False], ids=["first sync", "change"])
def test_b13_change_whose_answer_was_lost_is_not_made_again(deaf: type[Deaf], family: Family, first: bool) -> None:
    """siderolabs/talos#14001: a change that had been applied was repeated every minute for ever.

    The table is read back; what is there already is not written again, now or hourly.
    """
    table = Table(service("a", 1, family=family), endpoints("a", [1, 2, 3], family=family), family=family)
    if not first:
        table.sync()
    deaf.lose = 1
    table.sync(endpoints("a", [4, 5, 6], family=family))
    assert deaf.lose == 0
    assert table.last.full
    assert not any("add rule" in line and "service-" in line for line in statements(table.nft.taken()))
    table.tidy()
    assert view(family) == expected(table)
    for _ in range(3):
        table.clock.time = table.proxier.full_sync_due()
        assert table.sync() == []


def test_b13_transaction_of_thousands_of_statements_is_answered() -> None:
    """google/nftables#103, #235: an acknowledgement for each message had filled the socket's buffer."""
    lines = ["add table ip t", "add chain ip t c"]
    lines += [
        f'add rule ip t c ip saddr 10.0.{number >> 8}.{number & 255} accept comment "{"x" * 100}"'
        for number in range(3000)
    ]
    Nft().run("\n".join(lines) + "\n")
    with NftSocket(V4) as sock:
        assert sum(1 for _ in sock.dump(netlink.GET_RULE, {1: "t"})) == 3000


# --- B15: dumps that are interrupted ---------------------------------------------------------------------------------


class Interrupted:
    """Has dumps of addresses interrupted, after a part of what they are to say.

    Attributes:
        left: how many more.
        calls: how many dumps there were.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.left, self.calls = times, 0
        self._real = addresses.IPRoute
        monkeypatch.setattr(addresses, "IPRoute", self)

    def __call__(self) -> "Interrupted":
        return self

    def __enter__(self) -> "Interrupted":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get_addr(self) -> Iterator[Any]:
        """What the kernel says, or a part of it."""
        self.calls += 1
        with self._real() as route:
            found = [*route.get_addr()]
        if not self.left:
            return iter(found)
        self.left -= 1
        return self.part(found)

    @staticmethod
    def part(found: list[Any]) -> Iterator[Any]:
        yield from found[:1]
        raise NetlinkDumpInterrupted


def test_b15_interrupted_listing_of_addresses_is_repeated_as_a_whole(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """svinota/pyroute2#1206; containernetworking/plugins#1121: a dump that raced with a change gives a part at most."""
    namespace.ip(["link add one type veth peer name two", "addr add 192.0.2.7/24 dev one"])
    before = list_addresses()
    assert "192.0.2.7" in before
    interrupted = Interrupted(monkeypatch, 2)
    assert list_addresses() == before
    assert interrupted.calls == 3


def test_b15_listing_that_is_always_interrupted_is_an_error_and_no_part_of_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kubernetes/kubernetes#129562: it is tried a bounded number of times."""
    interrupted = Interrupted(monkeypatch, 1000)
    with pytest.raises(AddressesError, match="listing interface addresses"):
        list_addresses()
    assert 2 < interrupted.calls < 20


def test_b15_known_addresses_go_on_while_they_cannot_be_listed(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubevirt/kubevirt#18974; kubernetes/kubernetes#129562: the last picture is kept, and that is reported."""
    namespace.ip(["link add one type veth peer name two", "link set one up", "addr add 198.18.0.7/15 dev one"])
    interrupted = Interrupted(monkeypatch, 0)
    with running(Speaking(*WEB)) as journal:
        eventually(lambda: holds(namespace, "nodeport-ips", "198.18.0.7"), 15)
        interrupted.left = 1_000_000
        namespace.ip(["addr add 198.18.0.8/15 dev one"])
        eventually(lambda: any(event == "addresses unknown" for event, _ in journal.warned), 15)
        assert holds(namespace, "nodeport-ips", "198.18.0.7")
        interrupted.left = 0
        eventually(lambda: holds(namespace, "nodeport-ips", "198.18.0.8"), 15)
        assert holds(namespace, "nodeport-ips", "198.18.0.7")


KINDS = {
    "chains": netlink.GET_CHAIN,
    "rules": netlink.GET_RULE,
    "sets": netlink.GET_SET,
    "elements": netlink.GET_ELEMENT,
}


def interrupt(monkeypatch: pytest.MonkeyPatch, kind: int, times: int) -> list[int]:
    """Have dumps of a kind interrupted after half of what they are to say; a list with how many are left to be."""
    left = [times]
    real = NftSocket.dump

    def dump(sock: NftSocket, asked: int, names: dict[int, str]) -> Iterator[memoryview]:
        found = [*real(sock, asked, names)]
        if asked != kind or not left[0]:
            yield from found
            return
        left[0] -= 1
        yield from found[: len(found) // 2]
        raise DumpInterruptedError

    monkeypatch.setattr(NftSocket, "dump", dump)
    return left


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_b15_interrupted_dump_of_the_table_is_repeated_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """containernetworking/plugins#1121: what is missing in a part of a dump is not missing in the kernel."""
    table = Table(service("a", 1), endpoints("a", [1, 2, 3]), service("b", 2), endpoints("b", [1]))
    table.sync()
    left = interrupt(monkeypatch, kind, 2)
    assert table.again().sync() == []
    assert left == [0]


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_b15_table_that_cannot_be_read_is_left_as_it_is_and_read_later(
    monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """containernetworking/plugins#1121: nothing is deleted by what a part of a dump says."""
    table = Table(service("a", 1), endpoints("a", [1, 2, 3]), service("b", 2), endpoints("b", [1]))
    table.sync()
    held = view(V4)
    left = interrupt(monkeypatch, kind, 1_000_000)
    later = table.again()
    with pytest.raises(ReadBackError):
        later.sync()
    assert 1_000_000 - 20 < left[0] < 1_000_000 - 1
    assert view(V4) == held
    left[0] = 0
    assert later.sync() == []


# --- B16: nothing is forgotten ---------------------------------------------------------------------------------------

PENDING: dict[str, list[Change]] = {
    "endpoint gone": [endpoints("dns", [2], protocol="UDP")],
    "endpoints gone": [endpoints("dns", [], protocol="UDP")],
    "service gone": [gone("Service", "dns"), gone("EndpointSlice", "dns-1")],
    "slice gone": [gone("EndpointSlice", "dns-1")],
}


@pytest.mark.parametrize("failures", [1, 3])
@pytest.mark.parametrize("what", PENDING)
def test_b16_change_whose_apply_failed_is_made_by_the_next_one_that_succeeds(what: str, failures: int) -> None:
    """kubernetes/kubernetes#112604: what was to be done was forgotten with the apply that failed.

    Of the endpoint that went away in the sync that failed, nothing is left after the next that does not.
    """
    ports = [{"port": 53, "protocol": "UDP"}]
    table = Table(service("dns", 1, ports=ports), endpoints("dns", [1, 2], protocol="UDP"))
    table.sync()
    held = view(V4)

    def refuse(_: str) -> None:
        raise TransactionError("Could not process rule: Cannot allocate memory")

    table.nft.before = refuse
    changes = PENDING[what]
    for _ in range(failures):
        with pytest.raises(TransactionError):
            table.sync(*changes)
        assert view(V4) == held
        changes = []
    table.nft.before = lambda _: None
    table.sync()
    table.tidy()
    assert view(V4) == expected(table)
    assert "10.244.0.1 " not in run("nft", "list", "table", "ip", "kube-proxy")
    assert table.again().sync() == []


def test_b16_agent_makes_a_failed_change_good_by_itself(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubernetes/kubernetes#112604: no further event is needed."""
    broken = threading.Event()
    real = Nft.run

    def run_or_not(nft: Nft, text: str) -> None:
        if broken.is_set():
            raise TransactionError("Could not process rule: Cannot allocate memory")
        real(nft, text)

    monkeypatch.setattr(Nft, "run", run_or_not)
    source = Speaking(*WEB)
    with running(source) as journal:
        eventually(lambda: holds(namespace, "endpoints-tcp-0", "10.244.0.2", kind="map"), 15)
        broken.set()
        source.sink.apply([endpoints("web", [1, 3])])
        eventually(lambda: len(journal.failures) >= 2, 15)
        assert holds(namespace, "endpoints-tcp-0", "10.244.0.2", kind="map"), "what is there stays meanwhile"
        broken.clear()
        eventually(lambda: holds(namespace, "endpoints-tcp-0", "10.244.0.3", kind="map"), 15)
        eventually(lambda: not holds(namespace, "endpoints-tcp-0", "10.244.0.2", kind="map"), 15)


# --- B21: the library's context --------------------------------------------------------------------------------------


def test_b21_valid_command_works_after_each_of_many_that_failed(namespace: Namespace) -> None:
    """firewalld/firewalld#819; Debian/debiman#126: after one call that failed, all later ones failed as well."""
    nft = Nft()
    nft.run("add table ip t\n")
    bad = (
        "list table ip nowhere\n",
        "add rule ip t nowhere drop\n",
        "no such words\n",
        f"add chain ip t {'x' * 300}\n",
        "add rule ip t c ip saddr\n",
    )
    for turn in range(30):
        for call in (nft.run, nft.check):
            before = nft._ours()
            with pytest.raises(TransactionError):
                call(bad[turn % len(bad)])
            assert nft._ours() is not before, "what failed once is not used again"
        nft.run(f"add chain ip t c{turn}\n")
        assert nft.version()[0].isdigit()
    assert namespace.run("nft", "list", "table", "ip", "t").count("chain c") == 30


def test_b21_context_is_never_shared_between_threads(namespace: Namespace) -> None:
    """firewalld/firewalld#819: a second thread is turned away, and may have a context of its own at the same time."""
    first = Nft()
    first.run("add table ip t\n")
    failures: list[BaseException] = []
    turned_away: list[BaseException] = []

    def work() -> None:
        with namespace.enter():
            try:
                first.run("add chain ip t shared\n")
            except AssertionError as error:
                turned_away.append(error)
            own = Nft()
            try:
                for turn in range(20):
                    own.run(f"add chain ip t other{turn}\n")
                    with pytest.raises(TransactionError):
                        own.run("delete chain ip t nowhere\n")
            except KernelError as error:
                failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    for turn in range(20):
        first.run(f"add chain ip t own{turn}\n")
        with pytest.raises(TransactionError):
            first.run("delete chain ip t nowhere\n")
    thread.join(30)
    assert not thread.is_alive()
    assert failures == []
    assert len(turned_away) == 1
    assert namespace.run("nft", "list", "table", "ip", "t").count("chain o") == 40
    with pytest.raises(CommandError):
        namespace.run("nft", "list", "chain", "ip", "t", "shared")
