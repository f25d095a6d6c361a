"""Transactions: kernels, libraries, sysctls and tables of other programs that are not as one would wish."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netns.manifests import ManifestFolder, port
from netns.manifests import service as manifest
from netns.namespaces import Namespace
from nodeproxy.cli.main import UNSUPPORTED
from nodeproxy.kernel import netlink, support
from nodeproxy.kernel.addresses import list_addresses
from nodeproxy.kernel.errors import TransactionError, UnsupportedError
from nodeproxy.kernel.netlink import NftSocket, attribute_bytes, attributes, number, text
from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.readback import Found, read_back
from nodeproxy.kernel.support import (
    SKIP_KERNEL_CHECK,
    STEADY_LIBNFTABLES,
    check_libnftables,
    check_steady,
    version_tuple,
)
from nodeproxy.kernel.watch import TableWatch
from nodeproxy.kube.addresses import Family
from nodeproxy.ruleset.render import TABLE, cleanup_text
from unit.ruleset.build import renderer
from unit.sync.running import WEB, Speaking, eventually, holds, make
from unit.sync.support import TABLE_FAMILY, V4, V6, Table, endpoints, expected, listing, shop, sticky, view
from unit.sync.support import run as command

families = pytest.mark.parametrize("family", [V4, V6], ids=["IPv4", "IPv6"])
OPERATOR = Path(support.__file__).parents[2]


# --- B05: tables of others --------------------------------------------------------------------------------------------


@families
@pytest.mark.usefixtures("namespace")
def test_b05_only_our_own_table_is_asked_for(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubernetes/kubernetes#136786, #137501; k0sproject/k0s#7293: looking at tables of others crashed the tool.

    At start, at changes, at a foreign change and hourly, whatever is dumped is dumped of our table; of others, only
    that they exist.
    """
    asked: list[tuple[int, dict[int, str]]] = []
    real = NftSocket.dump

    def dump(sock: NftSocket, kind: int, names: dict[int, str]) -> Iterator[memoryview]:
        asked.append((kind, dict(names)))
        return real(sock, kind, names)

    monkeypatch.setattr(NftSocket, "dump", dump)
    table = Table(*shop(family), family=family)
    table.sync()
    table.again().sync()
    table.sync(endpoints("one", [5], family=family))
    command("nft", "flush", "chain", TABLE_FAMILY[family], TABLE, "services")
    table.proxier.suspect(["services"])
    table.sync()
    table.clock.time = table.proxier.full_sync_due()
    table.sync()
    assert view(family) == expected(table)
    kinds = {netlink.GET_TABLE, netlink.GET_CHAIN, netlink.GET_RULE, netlink.GET_SET, netlink.GET_ELEMENT}
    assert {kind for kind, _ in asked} == kinds
    assert all(names[1] == TABLE for kind, names in asked if kind != netlink.GET_TABLE)


def declare_odd_set() -> None:
    """A foreign table with a set that libnftables before 1.0.9 crashes on when it reads it.

    nft 1.1.2 and later remember of which expression a key's type was taken; this one is of a kind that nobody knows.
    """

    def message(kind: int, flags: int, body: bytes, resource: int = 0) -> bytes:
        whole = struct.pack("=BBH", socket.AF_INET, 0, socket.htons(resource)) + body
        return struct.pack("=IHHII", 16 + len(whole), kind, flags, 1, 0) + whole

    def data(kind: int, value: bytes) -> bytes:
        return bytes([kind, len(value)]) + value

    create, batch = 0x1 | 0x4 | 0x400, (16, 17)  # request, acknowledged; begin and end of a batch
    key = data(0, struct.pack("=I", 999)) + data(1, data(0, bytes(8)))
    table = attribute_bytes(1, b"foreign\0")
    declared = [table, attribute_bytes(2, b"odd\0")]
    # Flags, key's type (a name of an interface) and length, number within the transaction.
    declared += [attribute_bytes(kind, struct.pack(">I", value)) for kind, value in ((3, 0), (4, 41), (5, 16), (10, 1))]
    declared.append(attribute_bytes(13, data(3, key)))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink.NETFILTER) as sock:
        sock.settimeout(5)
        sock.bind((0, 0))
        sock.send(
            message(batch[0], 1, b"", netlink.NFTABLES)
            + message(netlink.NFTABLES << 8 | 0, create, table)
            + message(netlink.NFTABLES << 8 | 9, create, b"".join(declared))
            + message(batch[1], 1, b"", netlink.NFTABLES)
        )
        for _ in range(2):
            (error,) = struct.unpack_from("=i", sock.recv(4096), 16)
            assert error == 0, os.strerror(-error)


@contextlib.contextmanager
def working(*before: str) -> Iterator[subprocess.Popen[str]]:
    """``nodeproxy run`` in the namespace that the thread is in, with a Service; ``before``: words in front of it."""
    with contextlib.closing(ManifestFolder()) as folder:
        folder.write("web", [manifest("web", 10, [port(80)])])
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "nodeproxy", "run", f"--manifests={folder.path}", "--hostname-override=a"],
            env={**os.environ, "PYTHONPATH": str(OPERATOR)},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate(timeout=10)


def held(family: Family) -> Found | None:
    """What our table holds, without libnftables."""
    return read_back(family, renderer(family).base())


def serves(family: Family) -> bool:
    found = held(family)
    return found is not None and bool(found.mirror.elements.get("cluster-ips"))


def ended(process: subprocess.Popen[str]) -> str:
    """Have it end by SIGTERM; what it logged."""
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=20)
    assert process.returncode == 0, log
    return log


@pytest.mark.usefixtures("namespace")
def test_b05_table_of_a_newer_program_harms_nothing_or_is_named() -> None:
    """kubernetes/kubernetes#136786; projectcalico/calico#12472: nft crashed on a newer program's sets.

    libnftables 1.1 and later stand it, and all is served. Before that the agent says what is the matter and ends,
    with an exit code of its own; what is in place stays, and the foreign table in any case.
    """
    steady = version_tuple(Nft().version()) >= STEADY_LIBNFTABLES
    table = Table(*shop())
    table.sync()
    before = held(V4)
    assert before is not None
    declare_odd_set()
    with working() as process:
        if steady:
            eventually(lambda: serves(V6), 30)
            ended(process)
        else:
            _, log = process.communicate(timeout=30)
            assert process.returncode == UNSUPPORTED
            assert "crashes (signal 11)" in log
            assert "other programs" in log
            after = held(V4)
            assert after is not None
            assert after.mirror == before.mirror
    with NftSocket(V4) as sock:
        assert {text(attributes(found)[1]) for found in sock.dump(netlink.GET_TABLE, {})} == {TABLE, "foreign"}
        assert [text(attributes(found)[2]) for found in sock.dump(netlink.GET_SET, {1: "foreign"})] == ["odd"]


@pytest.mark.usefixtures("namespace")
def test_b05_clean_up_beside_the_table_of_a_newer_program_works_or_says_why_not() -> None:
    """kubernetes/kubernetes#136786: the same for the command that removes the rules."""
    steady = version_tuple(Nft().version()) >= STEADY_LIBNFTABLES
    Table(*shop()).sync()
    declare_odd_set()
    done = subprocess.run(
        [sys.executable, "-m", "nodeproxy", "cleanup"],
        env={**os.environ, "PYTHONPATH": str(OPERATOR)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == (0 if steady else UNSUPPORTED), done.stderr
    assert ("crashes (signal 11)" in done.stderr) is not steady
    assert (held(V4) is None) is steady


class Crashing(Nft):
    """A library that crashes."""

    def check(self, text: str) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(10)


class Refusing(Nft):
    """A library that refuses, and would be asked again."""

    def check(self, text: str) -> None:
        raise TransactionError("No")


def test_b05_crash_of_the_library_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """kubernetes/kubernetes#136786: it is tried by a process of its own, where the library may crash at all."""
    monkeypatch.setattr(support, "Nft", Crashing)
    with pytest.raises(UnsupportedError, match=r"libnftables 1\.0\.6 crashes \(signal 11\).*1\.1 or later"):
        check_steady("1.0.6", "")
    check_steady("1.1.0", "")
    monkeypatch.setattr(support, "Nft", Refusing)
    check_steady("1.0.6", "")


# --- B07, B08: versions and features ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.9.8", "1.0.0", "garbage", ""])
def test_b07_library_that_is_too_old_is_named_and_nothing_is_written(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """kubernetes/kubernetes#122743, #124152: before 1.0.1 nft read all tables to change one, and failed on others'."""
    monkeypatch.setattr(Nft, "version", lambda _: version)
    source = Speaking(*WEB)
    agent, _ = make(source)
    with pytest.raises(UnsupportedError, match=rf"libnftables 1\.0\.1 or later .* {version or 'of unknown version'}"):
        agent.run()
    assert namespace.run("nft", "list", "ruleset") == ""


@pytest.mark.parametrize("version", ["1.0.1", "1.0.6 (Lester Gooch #5)", "nftables v1.1.3 (Commodore Bullmoose #4)"])
def test_b07_library_that_is_new_enough_is_taken_however_it_spells_its_version(version: str) -> None:
    """kubernetes/kubernetes#124152: versions are compared as numbers."""
    check_libnftables(version)


def test_b07_kernel_that_is_too_old_is_named_and_may_be_tried_all_the_same(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubernetes/kubernetes#122572, #124152: kernels with features ported back state an old version."""
    monkeypatch.setattr(support, "MINIMUM_KERNEL", (99, 0))
    monkeypatch.delenv(SKIP_KERNEL_CHECK, raising=False)
    agent, _ = make(Speaking(*WEB))
    with pytest.raises(UnsupportedError, match=rf"Linux .*this is .*{os.uname().release}.*{SKIP_KERNEL_CHECK}"):
        agent.run()
    assert namespace.run("nft", "list", "ruleset") == ""
    monkeypatch.setenv(SKIP_KERNEL_CHECK, "1")
    probe = renderer(V4).probe()
    assert version_tuple(support.check_support(Nft(), probe))
    assert namespace.run("nft", "list", "ruleset") == "", "features are probed by dry runs"


class Lacking(Nft):
    """A kernel without the module for one expression: ENOENT, as for a chain that is missing."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self._word = word

    def check(self, text: str) -> None:
        for line in text.splitlines():
            if self._word in line:
                raise TransactionError("Could not process rule: No such file or directory", statement=line)
        super().check(text)


@pytest.mark.parametrize(
    ("word", "module"),
    [("fib", "nft_fib"), ("masquerade", "nft_masq"), ("numgen", "nft_numgen"), ("reject", "nft_rej")],
)
def test_b08_missing_kernel_feature_is_named_with_its_module(namespace: Namespace, word: str, module: str) -> None:
    """siderolabs/pkgs#951: 'No such file or directory' was said of a fib expression; a module was what was missing."""
    agent, _ = make(Speaking(*WEB))
    agent._nft = Lacking(word)
    with pytest.raises(UnsupportedError, match="the kernel lacks ") as caught:
        agent.run()
    assert module in str(caught.value)
    assert str(caught.value).count("(nft_") == 1, "and no other"
    assert namespace.run("nft", "list", "ruleset") == ""


@pytest.mark.usefixtures("namespace")
def test_b08_missing_object_is_not_taken_for_a_missing_feature() -> None:
    """siderolabs/pkgs#951: with all features there, the same words are about the statement that they are said of."""
    nft = Nft()
    support.check_features(nft, renderer(V4).probe())
    with pytest.raises(TransactionError, match="No such file or directory") as caught:
        nft.run("add table ip t\nadd chain ip t c\nadd rule ip t c fib daddr type local goto nowhere # ns/web\n")
    assert caught.value.owner == "ns/web"
    assert caught.value.statement.endswith("goto nowhere")


# --- B11: what can't be altered in place ------------------------------------------------------------------------------


def recreate(chain: str, declared: str) -> str:
    return (
        f"flush chain ip kube-proxy {chain}\ndelete chain ip kube-proxy {chain}\n"
        f"add chain ip kube-proxy {chain} {{ {declared} ; }}\n"
    )


CHANGED_DECLARATIONS = {
    "priority": recreate("nat-prerouting", "type nat hook prerouting priority -90"),
    "type": recreate("nat-output", "type filter hook output priority -100"),
    "hook": recreate("filter-forward", "type filter hook input priority 0"),
    "key of a map": (
        "flush chain ip kube-proxy firewall-check\ndelete map ip kube-proxy firewall-ips\n"
        "add map ip kube-proxy firewall-ips { type ipv4_addr . inet_service : verdict ; }\n"
    ),
}


@pytest.mark.parametrize("what", CHANGED_DECLARATIONS)
@pytest.mark.usefixtures("namespace")
def test_b11_table_of_an_earlier_version_is_declared_anew_and_clients_stay(what: str) -> None:
    """kubernetes/kubernetes#123162: a base chain that an upgrade declared otherwise had every transaction refused.

    It is replaced in one transaction, at the start, and clients keep their endpoints.
    """
    table = Table(*shop())
    table.sync()
    (name, *_) = sorted(key.removeprefix("set ") for key in view(V4) if key.startswith("set affinity-"))
    command("nft", "add", "element", "ip", TABLE, name, "{ 10.244.0.77 timeout 100s expires 90s }")
    command("nft", "-f", "-", text=CHANGED_DECLARATIONS[what])
    later = table.again()
    assert len(later.sync()) == 1
    assert later.last.took_over
    assert "10.244.0.77" in command("nft", "list", "set", "ip", TABLE, name)
    command("nft", "delete", "element", "ip", TABLE, name, "{ 10.244.0.77 }")
    assert view(V4) == expected(later)
    assert later.sync(endpoints("one", [9])) != [], "and transactions go through"
    assert not later.last.full


@pytest.mark.usefixtures("namespace")
def test_b11_other_timeout_of_an_affinity_set_is_taken_over_and_clients_stay() -> None:
    """openstack-k8s-operators/edpm-ansible#1104: what is declared otherwise than at the last start is changed."""
    table = Table(sticky("a", 1, 100), endpoints("a", [1, 2]))
    table.sync()
    sets = [key.removeprefix("set ") for key in view(V4) if key.startswith("set affinity-")]
    command("nft", "add", "element", "ip", TABLE, sets[0], "{ 10.244.0.77 }")
    table.move(sticky("a", 1, 50))
    later = table.again()
    later.sync()
    assert later.last.took_over == ""
    for name in sets:
        assert "timeout 50s" in command("nft", "list", "set", "ip", TABLE, name)
    assert "10.244.0.77" in command("nft", "list", "set", "ip", TABLE, sets[0])
    assert later.again().sync() == []


# --- B22: netlink -----------------------------------------------------------------------------------------------------


@families
@pytest.mark.parametrize("others", [0, 1, 2], ids=["our table", "one more table", "two more tables"])
@pytest.mark.usefixtures("namespace")
def test_b22_each_dump_of_nftables_says_what_nft_lists(family: Family, others: int) -> None:
    """svinota/pyroute2#559, #768: a listing through a code path that few use gave 'Invalid argument'.

    Tables, chains, rules, sets and elements are as many and as named as nft itself lists them.
    """
    with NftSocket(family) as sock:
        assert [*sock.dump(netlink.GET_TABLE, {})] == []
        assert [*sock.dump(netlink.GET_RULE, {1: TABLE})] == []
    ip = TABLE_FAMILY[family]
    for index in range(others):
        declared = f"add chain {ip} other{index} c\nadd rule {ip} other{index} c drop\nadd set {ip} other{index} s"
        command("nft", "-f", "-", text=f"add table {ip} other{index}\n{declared} {{ type inet_service ; }}\n")
    Table(*shop(family), family=family).sync()
    objects = json.loads(listing(family, "-j"))["nftables"]

    def listed(kind: str, attribute: str = "name") -> list[str]:
        return sorted(item[kind][attribute] for item in objects if kind in item)

    with NftSocket(family) as sock:

        def dumped(kind: int, name: int, names: dict[int, str]) -> list[str]:
            found = [attributes(item) for item in sock.dump(kind, names)]
            return sorted(text(item[name]) for item in found if text(item[1]) == TABLE)

        tables = sorted([TABLE, *(f"other{index}" for index in range(others))])
        assert sorted(text(attributes(item)[1]) for item in sock.dump(netlink.GET_TABLE, {})) == tables
        assert dumped(netlink.GET_CHAIN, 3, {1: TABLE}) == listed("chain")
        assert dumped(netlink.GET_RULE, 2, {1: TABLE}) == listed("rule", "chain")
        anonymous = 0x1
        sets = [attributes(item) for item in sock.dump(netlink.GET_SET, {1: TABLE})]
        named = [text(item[2]) for item in sets if not number(item.get(3, memoryview(b"\0"))) & anonymous]
        assert sorted(named) == sorted(listed("set") + listed("map"))
        for item in (item[kind] for kind in ("set", "map") for item in objects if kind in item):
            count = 0
            for message in sock.dump(netlink.GET_ELEMENT, {1: TABLE, 2: item["name"]}):
                count += sum(1 for _ in netlink.each_attribute(attributes(message).get(3, memoryview(b""))))
            assert count == len(item.get("elem", [])), item["name"]


@families
def test_b22_kernel_tells_of_changes_of_others_with_their_program(namespace: Namespace, family: Family) -> None:
    """svinota/pyroute2#559: the messages that drift is noticed by are proven, too."""
    table = Table(*shop(family), family=family)
    watch = TableWatch(lambda: None)
    watch.start()
    try:
        table.nft.follow_port(watch.own)
        table.sync()
        namespace.run("nft", "add", "rule", TABLE_FAMILY[family], TABLE, "services", "drop")
        heard = []
        eventually(lambda: bool(heard.extend(watch.take()) or heard), 10)
        time.sleep(0.1)
        heard += watch.take()
    finally:
        watch.stop()
    assert {(found.family, found.program, found.chains) for found in heard} == {
        (family, "nft", frozenset({"services"})),
    }


def test_b22_addresses_are_those_that_ip_lists(namespace: Namespace) -> None:
    """svinota/pyroute2#559: the listing of addresses, of both families and every kind of link."""
    namespace.ip(
        [
            "link add one type veth peer name two",
            "addr add 192.0.2.7/24 dev one",
            "addr add 198.51.100.1 peer 198.51.100.2/32 dev two",
            "addr add 2001:db8::1/64 dev two nodad",
            "link set one up",
        ]
    )
    listed = json.loads(namespace.run("ip", "-j", "addr"))
    wanted = {info["local"] for link in listed for info in link["addr_info"]}
    assert len(wanted) >= 4
    assert set(list_addresses()) == wanted


# --- B24: sysctls -----------------------------------------------------------------------------------------------------

MOUNTS = {
    "absent": "mount -t tmpfs none /proc/sys/net && test ! -e /proc/sys/net/ipv4",
    "netfilter's absent": (
        "test -e /proc/sys/net/netfilter/nf_conntrack_max && mount -t tmpfs none /proc/sys/net/netfilter"
        " && test ! -e /proc/sys/net/netfilter/nf_conntrack_max"
    ),
    "read-only": (
        "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys"
        " && ! (echo 1 >/proc/sys/net/ipv4/ip_forward) 2>/dev/null"
    ),
}


@pytest.mark.parametrize("how", MOUNTS)
def test_b24_agent_serves_where_sysctls_are_missing_or_read_only(namespace: Namespace, how: str) -> None:
    """kubernetes/kops#17915: the proxy ended at its start since a file of connection tracking was not there yet."""
    with working("unshare", "-m", "sh", "-c", f'{MOUNTS[how]} && exec "$@"', "sh") as process:
        eventually(lambda: process.poll() is not None or holds(namespace, "cluster-ips", "172.30", V4), 30)
        log = ended(process)
    assert "error" not in log.lower()
    namespace.run("nft", "-f", "-", text=cleanup_text(V4))
