"""What becomes of packets, in words that a test can compare, and objects in the shapes that reports are about."""

import contextlib
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from netns import addresses as plan
from netns.addresses import FAMILIES, Family, Pair
from netns.agent import TABLE, Agent
from netns.manifests import Manifest, backends, endpoint, endpoint_slice, port_name
from netns.matrix.sctp import probe_sctp
from netns.probe import Answer, Dropped, Flow, Outcome, Refused, Rejected, Unreachable, probe
from netns.servers import Protocol
from netns.world import Host, World

TARGET = 8080
"""What the pods serve."""
Kind = Literal["TCP", "UDP", "SCTP"]
PROTOCOLS: tuple[Protocol, Protocol] = ("TCP", "UDP")
EVERY_PROTOCOL: tuple[Kind, Kind, Kind] = ("TCP", "UDP", "SCTP")
INSIDE, OUTSIDE = plan.host(plan.INSIDE, 2), plan.host(plan.OUTSIDE, 2)
"""Two addresses of the client outside the cluster."""
CLIENTS = 24
"""How many clients :func:`choices` is. That all of them draw the same of two endpoints by chance: once in 2 ** 23."""

DEAD: Mapping[str, Any] = {"conditions": {"ready": False, "serving": False, "terminating": True}}
DRAINING: Mapping[str, Any] = {"conditions": {"ready": False, "serving": True, "terminating": True}}
NOT_READY: Mapping[str, Any] = {"conditions": {"ready": False, "serving": False, "terminating": False}}
"""Fields of endpoints: gone but for the name, about to go but serving, and not there yet."""

_ANSWERS_WITHIN = 5.0  # seconds, where nothing but an answer is expected
_TOTAL_RETRANS = 100  # where struct tcp_info of linux/tcp.h has tcpi_total_retrans
_WORDS: Mapping[type, str] = {
    Rejected: "rejected",
    Refused: "refused",
    Unreachable: "unreachable",
    Dropped: "dropped",
}


def cluster_ip(number: int) -> Pair:
    """The ClusterIP that :func:`netns.manifests.service` gives to ``number``."""
    return plan.host(plan.SERVICES, number)


def vip(number: int) -> Pair:
    """A load balancer's address."""
    return plan.host(plan.VIPS, number)


def external_ip(number: int) -> Pair:
    """An external IP."""
    return plan.host(plan.EXTERNAL_IPS, number)


def word(outcome: Outcome, world: World, family: Family) -> str:
    """What became of a flow: who answered, and ``as node`` if they saw node-a in place of the client; or how it failed.

    ``rejected`` is an ICMP error, ``refused`` a reset: nobody listens there. ``unreachable`` comes from the router,
    when no rule took the packet.
    """
    if not isinstance(outcome, Answer):
        return _WORDS[type(outcome)]
    own = outcome.source in world.node("node-a").own(family)
    # Another port alone says so only of the node's own flows: else the kernel took it since another flow has this one.
    if not outcome.masqueraded or (outcome.source == outcome.client and not own):
        return outcome.name
    return f"{outcome.name} as {'node' if own else outcome.source}"


def patience() -> float:
    """Seconds after which a flow counts as dropped. Answers take milliseconds, but on a machine with much to do."""
    return 0.4 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def fate(
    origin: Host,
    to: Pair,
    port: int = 80,
    *,
    source: Pair | None = None,
    protocols: Sequence[Kind] = PROTOCOLS,
    families: Sequence[Family] = FAMILIES,
) -> str:
    """What becomes of a flow, the same word for each family and protocol; if they differ, each with its own."""
    words: dict[str, str] = {}
    for protocol in protocols:
        targets = [(to.of(family), source.of(family) if source else None) for family in families]
        for family, outcome in zip(families, attempt(origin, targets, port, protocol, patience()), strict=True):
            words[f"{protocol} over IPv{family}"] = word(outcome, origin.world, family)
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{kind}: {what}" for kind, what in words.items())


def attempt(
    origin: Host, targets: Sequence[tuple[str, str | None]], port: int, protocol: Kind, timeout: float = _ANSWERS_WITHIN
) -> list[Outcome]:
    """Try a flow to each address, from an address where one is given, all at once."""
    if protocol == "SCTP":
        return probe_sctp([Flow(origin.namespace, to, port, source=source) for to, source in targets], timeout)
    return probe([Flow(origin.namespace, to, port, protocol, source) for to, source in targets], timeout)


CLOSED = "refused over TCP, rejected over UDP"
"""What :func:`ends` says of a port of a machine on which nobody listens."""


def ends(origin: Host, to: Pair, port: int) -> str:
    """What becomes of a flow over TCP and over UDP, told apart."""
    return ", ".join(f"{fate(origin, to, port, protocols=[protocol])} over {protocol}" for protocol in PROTOCOLS)


def shared_by(
    origin: Host, to: Pair, port: int = 80, *, source: Pair | None = None, families: Sequence[Family] = FAMILIES
) -> set[str]:
    """All that becomes of 40 connections over each family: the endpoints that share the traffic.

    Over TCP only: a UDP client that gets a port again after a change is still known to connection tracking.
    """
    found: set[str] = set()
    per_family = []
    for family in families:
        flow = Flow(origin.namespace, to.of(family), port, "TCP", source.of(family) if source else None)
        per_family.append({word(outcome, origin.world, family) for outcome in probe([flow] * 40, _ANSWERS_WITHIN)})
        found |= per_family[-1]
    assert all(words == found for words in per_family), f"families differ: {per_family}"
    return found


def choices(origin: Host, to: str, port: int = 80, protocol: Kind = "TCP") -> list[str]:
    """Which endpoint each of the outside client's addresses gets."""
    family: Family = 6 if ":" in to else 4
    targets = [(to, plan.host(plan.INSIDE, number).of(family)) for number in range(1, CLIENTS + 1)]
    outcomes = attempt(origin, targets, port, protocol)
    return [outcome.name if isinstance(outcome, Answer) else _WORDS[type(outcome)] for outcome in outcomes]


@contextlib.contextmanager
def steady(origin: Host, to: Pair, port: int = 80) -> Iterator[Counter[str]]:
    """Somebody who connects a hundred times a second over each family, and what became of it, counted.

    That is who answered, or how it failed; a lost packet is a failure, though the kernel sends another one.
    """
    found: Counter[str] = Counter()
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            found.update(_dial(origin, address, port) for address in to)
            stop.wait(0.01)

    thread = threading.Thread(target=run, name="steady client")
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join(30)


def _dial(origin: Host, address: str, port: int) -> str:
    with origin.namespace.enter():
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    with contextlib.closing(sock):
        sock.settimeout(10)
        try:
            sock.connect((address, port))
            name = sock.makefile().readline().partition(" ")[0]
        except OSError as error:
            return type(error).__name__
        again = struct.unpack_from("I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), _TOTAL_RETRANS)[0]
        return "a lost packet" if again else name or "nothing"


def with_endpoints(shape: Manifest, hosts: Iterable[Host], **fields: Any) -> list[Manifest]:
    """A Service with hosts behind every port of it, ``fields`` added to each endpoint."""
    return [shape, *backends(shape, hosts, TARGET, **fields)]


def slices(
    service_name: str,
    entries: Callable[[Family], Sequence[Manifest]],
    *,
    suffix: str = "",
    families: Sequence[Family] = FAMILIES,
    port: int = 80,
) -> list[Manifest]:
    """A slice for each family with entries of one's own, for a port of both protocols."""
    ports = [{"name": port_name(port, protocol), "protocol": protocol, "port": TARGET} for protocol in PROTOCOLS]
    return [endpoint_slice(service_name, family, entries(family), ports, suffix=suffix) for family in families]


def entry(host: Host, fields: Mapping[str, Any] | None = None) -> Callable[[Family], Sequence[Manifest]]:
    """The entries of slices (see :func:`slices`) for one host."""
    return lambda family: [endpoint(host, family, **(fields or {}))]


def created(shape: Manifest, time: str) -> Manifest:
    """A Service with the time of its creation."""
    return shape | {"metadata": shape["metadata"] | {"creationTimestamp": time}}


def table(agent: Agent, family: Family) -> str:
    """The whole table of a family, as ``nft`` lists it."""
    return agent.node.namespace.run("nft", "list", "table", "ip" if family == 4 else "ip6", TABLE)


def until(condition: Callable[[], bool], seconds: float = 15) -> None:
    """Wait for what comes by itself: what is out of use is removed from the table a second or two later."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)
