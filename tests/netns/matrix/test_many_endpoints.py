"""A Service of 1,500 endpoints, too many for a shared map: each gets its share."""

import contextlib
import math
import random
import socket
import struct
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from netns import addresses as plan
from netns.addresses import FAMILIES, Family, Pair
from netns.agent import CLUSTER_CIDR, Agent
from netns.manifests import Manifest, both, endpoint_slice, service
from netns.matrix.axes import EndpointChains
from netns.matrix.tracking import forget_connections
from netns.namespaces import Namespace
from netns.world import World

pytestmark = pytest.mark.timeout(300)

MANY, FEWER = 1500, 900
PACKETS = 45_000
"""So that chance leaves one of 1,500 endpoints out less than once in 10 ** 9 times: 1,500 * exp(-30)."""
CONNECTIONS = 2_000
NUMBER, TARGET, PER_SLICE = 65, 8080, 1000
RANGE = Pair("10.180.64.0/20", "fd00:10:180:64::/116")
_CLIENTS, _FIRST_PORT, _CHUNK = 240, 20_000, 100


def member(index: int) -> Pair:
    """The addresses of an endpoint, from 0 on."""
    return Pair(f"10.180.{64 + (index + 1) // 256}.{(index + 1) % 256}", f"fd00:10:180:64::{index + 1:x}")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(nodes=1, pods=1) as world:
        yield world


@pytest.fixture(scope="module")
def crowd(world: World) -> Namespace:
    """The namespace that has all the endpoints' addresses."""
    crowd, node = world.namespace("crowd"), world.node("node-a")
    node.ip(
        f"link add crowd0 type veth peer name eth0 netns {crowd.path}",
        "link set crowd0 up",
        "addr add 10.99.0.1/32 dev crowd0",
        "addr add fd00:10:99::1/128 dev crowd0 nodad",
    )
    crowd.ip(
        [
            "link set lo up",
            "link set eth0 up",
            "addr add 10.99.0.2/32 dev eth0",
            "addr add fd00:10:99::2/128 dev eth0 nodad",
            *(f"route add {gateway} dev eth0" for gateway in ("10.99.0.1", "fd00:10:99::1")),
            *(f"route add default via {gateway} dev eth0" for gateway in ("10.99.0.1", "fd00:10:99::1")),
            *(f"route add local {ranges} dev lo" for ranges in RANGE),
        ]
    )
    node.ip(
        *(f"route add {peer} dev crowd0" for peer in ("10.99.0.2", "fd00:10:99::2")),
        *(f"route add {ranges} via {peer}" for ranges, peer in zip(RANGE, ("10.99.0.2", "fd00:10:99::2"), strict=True)),
    )
    return crowd


def manifests(size: int) -> list[Manifest]:
    """The Service with so many endpoints, in slices of at most 1,000 as the control plane makes them."""
    one = service("crowd", NUMBER, both(80))
    ports = [{"name": entry["name"], "protocol": entry["protocol"], "port": TARGET} for entry in one["spec"]["ports"]]
    slices = []
    for family in FAMILIES:
        for start in range(0, size, PER_SLICE):
            part = range(start, min(size, start + PER_SLICE))
            endpoints = [{"addresses": [member(index).of(family)], "nodeName": "node-a"} for index in part]
            slices.append(endpoint_slice("crowd", family, endpoints, ports, suffix=f"-{start}"))
    return [one, *slices]


@pytest.fixture(scope="module", params=EndpointChains, ids=lambda chains: chains.value)
def agent(world: World, crowd: Namespace, request: pytest.FixtureRequest) -> Iterator[Agent]:
    del crowd
    with Agent(world.node("node-a"), [CLUSTER_CIDR, f"--endpoint-chains={request.param.value}"]) as agent:
        yield agent


def settle(agent: Agent, size: int) -> None:
    agent.folder.write("crowd", manifests(size))
    agent.settle(60)


_RECEIVE = {4: (socket.IPPROTO_IP, 8), 6: (socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO)}  # 8: IP_PKTINFO of ip(7)


def datagrams(world: World, crowd: Namespace, family: Family) -> Counter[str]:
    """How many of many datagrams, each of a client of its own, each endpoint gets."""
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    address = plan.host(plan.SERVICES, NUMBER).of(family), 80
    counts: Counter[str] = Counter()
    sent = 0
    with contextlib.ExitStack() as stack:
        with crowd.enter():
            sink = stack.enter_context(socket.socket(kind, socket.SOCK_DGRAM))
        sink.setsockopt(*_RECEIVE[family], 1)
        sink.bind(("::" if family == 6 else "0.0.0.0", TARGET))  # noqa: S104 it has 1,500 addresses
        sink.settimeout(5)
        stack.enter_context(world.client.namespace.enter())
        for port in range(_FIRST_PORT, _FIRST_PORT + PACKETS // _CLIENTS + 1):
            for client in range(1, _CLIENTS + 1):
                with socket.socket(kind, socket.SOCK_DGRAM) as sock:
                    sock.bind((plan.host(plan.INSIDE, client).of(family), port))
                    sock.sendto(b"x", address)
                sent += 1
                if sent % _CHUNK == 0:
                    counts.update(_arrived(sink, family, _CHUNK))
        counts.update(_arrived(sink, family, sent % _CHUNK))
    assert counts.total() == sent >= PACKETS
    return counts


def _arrived(sink: socket.socket, family: Family, count: int) -> Iterator[str]:
    """The addresses that the next datagrams were for."""
    for _ in range(count):
        _, ancillary, _, _ = sink.recvmsg(16, 128)
        [(_, _, info)] = ancillary
        if family == 4:
            yield socket.inet_ntoa(struct.unpack("=i4s4s", info)[2])
        else:
            yield socket.inet_ntop(socket.AF_INET6, info[:16])


def connections(world: World, crowd: Namespace, family: Family) -> Counter[str]:
    """How many of many TCP connections each endpoint gets."""
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    address = plan.host(plan.SERVICES, NUMBER).of(family), 80
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        with crowd.enter():
            listener = stack.enter_context(socket.socket(kind, socket.SOCK_STREAM))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("::" if family == 6 else "0.0.0.0", TARGET))  # noqa: S104 it has 1,500 addresses
        listener.listen(128)
        listener.settimeout(5)
        stack.enter_context(world.client.namespace.enter())
        for _ in range(CONNECTIONS):
            with socket.create_connection(address, 5):
                accepted, _ = listener.accept()
                counts[accepted.getsockname()[0]] += 1
                accepted.close()
    return counts


def unfair(counts: Counter[str], members: Sequence[str]) -> list[str]:
    """What chance does not explain in a share-out, but for once in 10 ** 9 times: a line for each such thing.

    That the shares are even is judged by Pearson's chi-square, and its bound is Wilson and Hilferty's approximation.
    """
    lines = [f"{name} is no endpoint" for name in counts.keys() - set(members)]
    lines += [f"{name} got nothing" for name in members if not counts[name]]
    share, freedom = counts.total() / len(members), len(members) - 1
    statistic = sum((counts[name] - share) ** 2 / share for name in members)
    spread = 2 / (9 * freedom)
    bound = freedom * (1 - spread + 6.2 * math.sqrt(spread)) ** 3  # a normal variable exceeds 6.2 in 3e-10 of all cases
    return lines + ([f"chi-square {statistic:.0f} is over {bound:.0f}"] if statistic > bound else [])


@pytest.mark.parametrize("family", FAMILIES)
def test_each_of_1500_endpoints_gets_its_share(world: World, crowd: Namespace, agent: Agent, family: Family) -> None:
    """Every endpoint gets traffic, and as much as every other, as far as chance lets it."""
    settle(agent, MANY)
    forget_connections(agent.node.namespace)
    members = [member(index).of(family) for index in range(MANY)]
    assert unfair(datagrams(world, crowd, family), members) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_tcp_is_spread_over_1500_endpoints(world: World, crowd: Namespace, agent: Agent, family: Family) -> None:
    """2,000 connections reach about as many different endpoints as chance would choose."""
    settle(agent, MANY)
    forget_connections(agent.node.namespace)
    counts = connections(world, crowd, family)
    assert counts.keys() <= {member(index).of(family) for index in range(MANY)}
    expected = MANY * (1 - (1 - 1 / MANY) ** CONNECTIONS)
    # McDiarmid's inequality: further off in fewer than 1 of 10 ** 9 cases.
    assert abs(len(counts) - expected) < math.sqrt(CONNECTIONS * math.log(2e9) / 2)


def test_endpoints_that_went_get_nothing(world: World, crowd: Namespace, agent: Agent) -> None:
    """From 1,500 to 900 endpoints, from a map of its own to a shared one: those left share out all there is."""
    settle(agent, MANY)
    settle(agent, FEWER)
    forget_connections(agent.node.namespace)
    members = [member(index).v4 for index in range(FEWER)]
    assert unfair(datagrams(world, crowd, 4), members) == []


def test_unfair_shares_are_noticed() -> None:
    """One endpoint left out, one that is preferred, half that get a quarter less, a stranger; not chance."""
    members = [str(index) for index in range(MANY)]
    chance = random.Random(7)  # noqa: S311 no secret
    even = Counter(chance.choices(members, k=PACKETS))
    assert unfair(even, members) == []
    assert unfair(Counter({name: count for name, count in even.items() if name != "3"}), members) == ["3 got nothing"]
    assert unfair(even + Counter({"3": 200}), members)
    weights = [3] * (MANY // 2) + [4] * (MANY // 2)
    assert unfair(Counter(chance.choices(members, weights, k=PACKETS)), members)
    assert unfair(even + Counter({"x": 1}), members) == ["x is no endpoint"]
