"""No packet falls through the rules while they change under it.

A packet takes a microsecond or so from the rule that draws a slot to the slot. If a transaction that moves the rule
also empties the old slot, and commits within that microsecond, the packet finds nothing and is not translated. So
slots are emptied by a later transaction. Where the rule stays, what a slot holds is replaced in one step. A meter
behind the rules counts packets that were not translated.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from netns.namespaces import Namespace
from nodeproxy.kernel.nft import Nft
from nodeproxy.kube.source import Change

from .support import Table, endpoints, run, service

SERVICE = "10.96.0.1"

# Opens a new flow with every packet: random source address and port. Ends with its parent, or after a minute.
SENDER = """
import os, random, socket, struct, sys, time
out = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
parent, end = os.getppid(), time.monotonic() + 60
target = socket.inet_aton(sys.argv[1])
print("ready", flush=True)
while os.getppid() == parent and time.monotonic() < end:
    for _ in range(200):
        source = bytes([10, 9, random.randrange(256), random.randrange(1, 255)])
        udp = struct.pack("!HHHH", random.randrange(1024, 65535), 80, 8, 0)
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 0, 0, 64, 17, 0, source, target)
        try:
            out.sendto(ip + udp, (sys.argv[1], 0))
        except OSError:
            pass
"""

# Behind destination NAT (-100), before anything is filtered (0).
METER = f"""
add table ip scale
add chain ip scale output {{ type filter hook output priority -50 ; }}
add rule ip scale output ip daddr {SERVICE} udp dport 80 counter drop
add rule ip scale output ip daddr 10.244.0.0/16 counter drop
"""


@contextmanager
def sending(namespace: Namespace, meter: str = METER, to: str = SERVICE) -> Iterator[None]:
    """Packets to the Service from this namespace, as many as one core makes."""
    namespace.run("ip", "route", "add", "local", "10.96.0.0/16", "dev", "lo")
    namespace.run("ip", "route", "add", "local", "10.244.0.0/16", "dev", "lo")
    namespace.run("sh", "-c", "echo 1 > /proc/sys/net/netfilter/nf_conntrack_udp_timeout")
    namespace.nft(meter)
    sender = subprocess.Popen([sys.executable, "-c", SENDER, to], stdout=subprocess.PIPE, text=True)
    try:
        assert sender.stdout is not None
        assert sender.stdout.readline() == "ready\n"
        yield
    finally:
        sender.kill()
        sender.communicate(timeout=10)


def counted() -> tuple[int, int]:
    """What the two counters of the meter have counted, in the order of their rules."""
    listed = json.loads(run("nft", "-j", "list", "table", "ip", "scale"))["nftables"]
    first, second = (
        item["counter"]["packets"]
        for entry in listed
        if "rule" in entry
        for item in entry["rule"]["expr"]
        if "counter" in item
    )
    return first, second


@pytest.mark.parametrize("scaling", [False, True], ids=["replaced", "more and fewer"])
def test_no_packet_is_lost_while_endpoints_come_and_go(namespace: Namespace, scaling: bool) -> None:
    """As many new ones as old ones take their slots; else the rule moves to fresh slots."""
    ports = [{"port": 80, "protocol": "UDP"}]
    table = Table(service("a", 1, ports=ports), endpoints("a", [1, 2], protocol="UDP"))
    table.sync()
    changes = 0
    with sending(namespace):
        end = time.monotonic() + 5
        while time.monotonic() < end:
            others = [7] if scaling and changes % 2 else []
            table.sync(endpoints("a", [1 + changes % 3, 4, 5 + changes % 2, *others], protocol="UDP"))
            table.tidy()
            changes += 1
    lost, arrived = counted()
    assert changes > 100
    assert arrived > 1000
    assert lost == 0


def test_the_meter_sees_what_is_lost_when_slots_go_in_the_same_transaction(namespace: Namespace) -> None:
    nft = Nft()
    nft.run(f"""
add table ip t
add map ip t slots {{ typeof numgen random mod 1 : ip daddr . udp dport ; size 1024 ; }}
add chain ip t choose
add chain ip t output {{ type nat hook output priority -100 ; }}
add rule ip t output ip daddr {SERVICE} goto choose
add element ip t slots {{ 0 : 10.244.0.1 . 80, 1 : 10.244.0.2 . 80 }}
add rule ip t choose meta l4proto udp dnat ip to numgen random mod 2 offset 0 map @slots
""")
    old, new = 0, 2
    lost = 0
    with sending(namespace):
        end = time.monotonic() + 30
        while not lost and time.monotonic() < end:
            for _ in range(500):
                nft.run(f"""
add element ip t slots {{ {new} : 10.244.0.1 . 80, {new + 1} : 10.244.0.2 . 80 }}
flush chain ip t choose
add rule ip t choose meta l4proto udp dnat ip to numgen random mod 2 offset {new} map @slots
delete element ip t slots {{ {old}, {old + 1} }}
""")
                old, new = new, old
            lost, _ = counted()
    assert lost > 0


VIP = "192.0.2.1"
# Around the chains that look at source ranges (-110); nothing goes further.
GATES = f"""
add table ip scale
add chain ip scale before {{ type filter hook output priority -120 ; }}
add rule ip scale before ip daddr {VIP} counter
add chain ip scale after {{ type filter hook output priority -105 ; }}
add rule ip scale after ip daddr {VIP} counter drop
"""


def test_no_allowed_client_is_dropped_while_source_ranges_change(namespace: Namespace) -> None:
    """For a moment after a transaction the kernel finds nothing in a new set of ranges; so there is no such set."""
    count = 200

    def services(ranges: list[str]) -> list[Change]:
        return [
            service(
                f"s{i}",
                i + 1,
                type="LoadBalancer",
                vips=[f"192.0.2.{i + 1}"],
                ports=[{"port": 80, "protocol": "UDP"}],
                loadBalancerSourceRanges=ranges,
            )
            for i in range(count)
        ]

    table = Table(*services(["10.9.0.0/16"]), *(endpoints(f"s{i}", [1], protocol="UDP") for i in range(count)))
    table.sync()
    namespace.run("ip", "route", "add", "local", "192.0.2.0/24", "dev", "lo")
    changes = 0
    with sending(namespace, GATES, VIP):
        end = time.monotonic() + 5
        while time.monotonic() < end:
            changes += 1
            table.sync(*services(["10.9.0.0/16", "10.8.0.0/16"] if changes % 2 else ["10.9.0.0/16"]))
    arrived, passed = counted()
    assert changes > 10
    assert arrived > 1000
    assert passed == arrived
