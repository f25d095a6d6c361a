"""ClientIP affinity: a client stays with its endpoint for as long as it should, and no longer."""

import time
from collections.abc import Iterator

import pytest

from netns import addresses as plan
from netns.addresses import FAMILIES, Family, Pair
from netns.agent import Agent
from netns.manifests import Manifest, backends, both, service
from netns.probe import Answer, Flow, probe
from netns.servers import Protocol
from netns.world import World

PROTOCOLS: tuple[Protocol, Protocol] = ("TCP", "UDP")
CLIENTS = 24
SHORT = 2
LONG, BRIEF, CHANGING, RESTARTED = 61, 62, 63, 64
VIP = plan.host(plan.VIPS, LONG)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(nodes=2, pods=3) as world:
        world.serve_pods(8080)
        yield world


def _changing(world: World, *pods: str) -> list[Manifest]:
    shape = service("changing", CHANGING, both(80), affinity_seconds=600)
    return [shape, *backends(shape, [world.pod(name) for name in pods], 8080)]


@pytest.fixture(scope="module")
def agent(world: World) -> Iterator[Agent]:
    pods = [world.pod(name) for name in ("pod-a1", "pod-a2", "pod-b1")]
    shapes = [
        service("long", LONG, both(80, node_port=30061), affinity_seconds=600, vips=[VIP]),
        service("brief", BRIEF, both(80), affinity_seconds=SHORT),
        service("restarted", RESTARTED, both(80), affinity_seconds=600),
    ]
    with Agent(world.node("node-a")) as agent:
        agent.apply(
            services=[manifest for shape in shapes for manifest in (shape, *backends(shape, pods, 8080))],
            changing=_changing(world, "pod-a1", "pod-a2", "pod-b1"),
        )
        yield agent


def _choices(world: World, to: Pair, family: Family, protocol: Protocol, port: int = 80) -> list[str]:
    """Which endpoint each of the client's addresses got."""
    flows = [
        Flow(world.client.namespace, to.of(family), port, protocol, plan.host(plan.INSIDE, number).of(family))
        for number in range(1, CLIENTS + 1)
    ]
    outcomes = probe(flows, 1.0)
    assert all(isinstance(outcome, Answer) for outcome in outcomes), outcomes
    return [outcome.name for outcome in outcomes if isinstance(outcome, Answer)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("family", FAMILIES)
def test_client_stays_with_its_endpoint(world: World, agent: Agent, family: Family, protocol: Protocol) -> None:
    """Whoever comes again gets the same endpoint, through whichever of the Service's addresses."""
    del agent
    cluster_ip = plan.host(plan.SERVICES, LONG)
    first = _choices(world, cluster_ip, family, protocol)
    assert len(set(first)) > 1
    for _ in range(5):
        assert _choices(world, cluster_ip, family, protocol) == first
    assert _choices(world, VIP, family, protocol) == first
    assert _choices(world, world.node("node-a").addresses, family, protocol, 30061) == first


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("family", FAMILIES)
def test_affinity_expires(world: World, agent: Agent, family: Family, protocol: Protocol) -> None:
    """Each use prolongs it; left alone for longer than the timeout, a client may get another endpoint."""
    del agent
    cluster_ip = plan.host(plan.SERVICES, BRIEF)
    first = _choices(world, cluster_ip, family, protocol)
    started = time.monotonic()
    while time.monotonic() - started < SHORT * 1.25:
        time.sleep(SHORT / 4)
        assert _choices(world, cluster_ip, family, protocol) == first
    time.sleep(SHORT + 0.2)
    # That all of 24 clients happen to draw the same of three endpoints again: once in 3 ** 24 times.
    assert _choices(world, cluster_ip, family, protocol) != first


@pytest.mark.parametrize("family", FAMILIES)
def test_clients_stay_while_other_endpoints_come_and_go(world: World, agent: Agent, family: Family) -> None:
    """A change of endpoints moves the clients of those that went, and nobody else."""
    cluster_ip = plan.host(plan.SERVICES, CHANGING)
    agent.apply(changing=_changing(world, "pod-a1", "pod-a2", "pod-b1"))
    first = _choices(world, cluster_ip, family, "TCP")
    agent.apply(changing=_changing(world, "pod-a1", "pod-a2", "pod-b1", "pod-a3", "pod-b2"))
    assert _choices(world, cluster_ip, family, "TCP") == first
    agent.apply(changing=_changing(world, "pod-a2", "pod-a3", "pod-b1"))
    after = _choices(world, cluster_ip, family, "TCP")
    stayed = [(old, new) for old, new in zip(first, after, strict=True) if old != "pod-a1"]
    assert stayed
    assert all(old == new for old, new in stayed)
    assert set(after) <= {"pod-a2", "pod-a3", "pod-b1"}
    assert _choices(world, cluster_ip, family, "TCP") == after


@pytest.mark.parametrize("family", FAMILIES)
def test_affinity_outlives_a_restart(world: World, agent: Agent, family: Family) -> None:
    """After kill -9 and a restart, every client still gets its endpoint."""
    cluster_ip = plan.host(plan.SERVICES, RESTARTED)
    first = _choices(world, cluster_ip, family, "TCP")
    agent.kill()
    assert _choices(world, cluster_ip, family, "TCP") == first
    agent.start()
    agent.settle()
    assert _choices(world, cluster_ip, family, "TCP") == first
