"""The harness tells apart what may become of a packet, and leaves nothing behind."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netns.addresses import CLUSTER, FAMILIES, INSIDE, SERVICES, VIPS, Family, host
from netns.monitor import Monitor
from netns.namespaces import CommandError, Namespace
from netns.probe import Answer, Dropped, Flow, Refused, Rejected, Unreachable, probe
from netns.servers import Protocol
from netns.world import World

PROTOCOLS: tuple[Protocol, Protocol] = ("TCP", "UDP")
ANSWERED, REJECTED, DROPPED, UNHANDLED = (host(SERVICES, number) for number in (1, 2, 3, 4))
RULES = """
table {ip} small {{
    chain nat {{
        type nat hook prerouting priority -100;
        {ip} daddr {answered} meta l4proto {{ tcp, udp }} dnat to {pod}
    }}
    chain nat-out {{
        type nat hook output priority -100;
        {ip} daddr {answered} meta l4proto {{ tcp, udp }} dnat to {pod}
    }}
    chain nat-last {{
        type nat hook postrouting priority 100;
        ct original {ip} daddr {answered} {ip} saddr != {cluster} masquerade fully-random
    }}
    chain forward {{ type filter hook forward priority 0; jump fate; }}
    chain output {{ type filter hook output priority 0; jump fate; }}
    chain fate {{
        {ip} daddr {rejected} reject
        {ip} daddr {dropped} drop
    }}
}}
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(nodes=2, pods=2) as world:
        world.serve_pods(8080)
        for family in FAMILIES:
            world.node("node-a").namespace.nft(
                RULES.format(
                    ip="ip" if family == 4 else "ip6",
                    answered=ANSWERED.of(family),
                    rejected=REJECTED.of(family),
                    dropped=DROPPED.of(family),
                    pod=world.pod("pod-b1").address(family),
                    cluster=CLUSTER.of(family),
                )
            )
        yield world


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("origin", ["pod-a1", "node-a", "client"])
def test_fates_are_told_apart(world: World, family: Family, protocol: Protocol, origin: str) -> None:
    """An answer, a reject, a drop and a packet that no rule took look different, from everywhere."""
    hosts = {**world.pods, **world.nodes, "client": world.client}
    start = hosts[origin]

    def fate(pair: tuple[str, str]) -> object:
        return start.connect(pair[0 if family == 4 else 1], 8080, protocol)

    answer = fate(ANSWERED)
    assert isinstance(answer, Answer)
    assert answer.name == "pod-b1"
    assert answer.client == start.address(family)
    assert answer.masqueraded == (origin != "pod-a1")
    assert isinstance(fate(REJECTED), Rejected)
    assert fate(DROPPED) == Dropped()
    assert fate(UNHANDLED) == Unreachable()


@pytest.mark.parametrize("family", FAMILIES)
def test_closed_port_is_refused_not_rejected(world: World, family: Family) -> None:
    """A TCP reset is not taken for a reject."""
    assert world.client.connect(world.pod("pod-a1").address(family), 81) == Refused()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_client_may_choose_its_address(world: World, family: Family, protocol: Protocol) -> None:
    """The client can use every address of its ranges, and is seen with it where nothing masquerades."""
    source = host(INSIDE, 77).of(family)
    answer = world.client.connect(world.pod("pod-a2").address(family), 8080, protocol, source=source)
    assert answer == Answer("pod-a2", source, 0, source, 0)
    assert isinstance(answer, Answer)
    assert not answer.masqueraded


def test_many_flows_share_one_timeout(world: World) -> None:
    """A hundred drops take little longer than one."""
    started = time.monotonic()
    outcomes = probe([Flow(world.client.namespace, DROPPED.v4, 80)] * 100, timeout=0.3)
    assert outcomes == [Dropped()] * 100
    assert time.monotonic() - started < 1.5


def test_closed_server_no_longer_answers(world: World) -> None:
    """A pod whose server is closed refuses, and resets what was connected."""
    pod = world.pod("pod-b2")
    server = pod.serve(9999)
    with world.client.namespace.enter():
        held = socket.create_connection((pod.addresses.v4, 9999), 1)
    with held:
        assert held.recv(100).startswith(b"pod-b2 192.168.0.100:")
        server.close()
        assert held.recv(100) == b""
    assert world.client.connect(pod.addresses.v4, 9999) == Refused()
    assert isinstance(world.client.connect(pod.addresses.v4, 9999, "UDP"), Rejected)


def test_unrouted_range_is_unreachable(world: World) -> None:
    """What no rule takes comes back from the router."""
    assert world.client.connect(host(VIPS, 9).v4, 80) == Unreachable()


def test_no_route_is_said_to_everything(world: World) -> None:
    """The router says "no route" to each packet, however many there are."""
    for family in FAMILIES:
        flows = [Flow(world.pod("pod-a1").namespace, host(VIPS, 9).of(family), 80, "UDP")] * 50
        assert probe(flows) == [Unreachable()] * 50


def test_entering_a_namespace_is_undone() -> None:
    """After leaving, the thread is where it was, also when something fails inside."""
    before = Path("/proc/thread-self/ns/net").readlink()
    namespace = Namespace("short")
    try:
        with namespace.enter():
            assert Path("/proc/thread-self/ns/net").readlink() != before
        with pytest.raises(CommandError, match="short: ip -batch"):
            namespace.ip(["link set nonsense up"])
        assert Path("/proc/thread-self/ns/net").readlink() == before
    finally:
        namespace.close()


def test_world_is_made_quickly() -> None:
    """Two nodes with three pods each are there within two seconds (half of one on an idle machine)."""
    started = time.monotonic()
    with World(nodes=2, pods=3):
        assert time.monotonic() - started < 2


def test_monitor_sees_every_write_and_nothing_else(world: World) -> None:
    """A write is reported with its time, soon; without one there is nothing."""
    namespace = world.node("node-b").namespace
    with Monitor(namespace) as monitor:
        assert monitor.lines() == []
        before = time.monotonic()
        namespace.nft("add table ip seen\nadd chain ip seen one\n")
        lines = monitor.lines()
        assert [line.text for line in lines] == ["add table ip seen", "add chain ip seen one"]
        assert 0 < lines[0].at - before < 0.2


def test_started_command_dies_with_its_parent() -> None:
    """A test run that is killed leaves no process behind, and so no namespace."""
    program = (
        "import os, sys, time\n"
        "from netns.world import World\n"
        "world = World(nodes=1, pods=1)\n"
        "print(world.node('node-a').namespace.start('sleep', '60').pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        while Path(f"/proc/{child}/comm").read_text() != "sleep\n":
            time.sleep(0.01)
        parent.kill()
    deadline = time.monotonic() + 5
    while not _gone(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _gone(child)


def _gone(pid: int) -> bool:
    """No such process, or one that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
