"""Transactions: tables of other programs, and sysctls, that are not as one would wish."""

import contextlib
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
from nodeproxy.kernel.errors import TransactionError, UnsupportedError
from nodeproxy.kernel.netlink import NftSocket, attribute_bytes, attributes, text
from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.readback import Found, read_back
from nodeproxy.kernel.support import (
    STEADY_LIBNFTABLES,
    check_steady,
    version_tuple,
)
from nodeproxy.kube.addresses import Family
from nodeproxy.ruleset.render import TABLE, cleanup_text
from unit.ruleset.build import renderer
from unit.sync.running import eventually, holds
from unit.sync.support import TABLE_FAMILY, V4, V6, Table, endpoints, expected, shop, view
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
