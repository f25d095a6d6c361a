"""The agent may go at any time: the rules stay, no packet is lost, and nothing is written that is right already."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from netns import addresses as plan
from netns.addresses import FAMILIES, Family
from netns.agent import CLUSTER_CIDR, Agent
from netns.manifests import Manifest, backends, both, service
from netns.monitor import Monitor, declares
from netns.namespaces import CommandError
from netns.probe import Answer, Outcome, Unreachable
from netns.world import World

EVERY = 0.005
SHARED = plan.host(plan.SERVICES, 91)


@pytest.fixture
def world() -> Iterator[World]:
    with World(nodes=2, pods=3) as world:
        world.serve_pods(8080)
        yield world


def _services(world: World) -> list[Manifest]:
    pods = list(world.pods.values())
    shapes = [
        service("shared", 91, both(80)),
        service("single", 92, both(80, node_port=30092)),
        service("sticky", 93, both(80), affinity_seconds=600),
        service(
            "balanced",
            94,
            both(80, node_port=30094),
            vips=[plan.host(plan.VIPS, 94)],
            externalTrafficPolicy="Local",
            loadBalancerSourceRanges=[*plan.INSIDE, *plan.UNDERLAY],
        ),
        service("empty", 95, both(80, node_port=30095)),
        service("outside", 96, both(80), externalIPs=list(plan.host(plan.EXTERNAL_IPS, 96))),
    ]
    hosts = [pods, pods[:1], pods[:3], pods, [], pods[2:4]]
    return [
        manifest
        for shape, chosen in zip(shapes, hosts, strict=True)
        for manifest in (shape, *backends(shape, chosen, 8080))
    ]


@pytest.fixture(params=["WhenAffinity", "Always"])
def agent(world: World, request: pytest.FixtureRequest) -> Iterator[Agent]:
    with Agent(world.node("node-a"), [CLUSTER_CIDR, f"--endpoint-chains={request.param}"]) as agent:
        agent.apply(services=_services(world))
        yield agent


@contextmanager
def _steady_client(world: World, family: Family) -> Iterator[list[Outcome]]:
    """A client that connects every 5 ms, and what became of its connections."""
    outcomes: list[Outcome] = []
    stop = threading.Event()

    def run() -> None:
        due = time.monotonic()
        while not stop.is_set():
            outcomes.append(world.client.connect(SHARED.of(family), 80, timeout=1))
            due += EVERY
            stop.wait(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=run, name=f"client IPv{family}")
    thread.start()
    try:
        yield outcomes
    finally:
        stop.set()
        thread.join(5)


def test_kill_and_restart_lose_and_write_nothing(world: World, agent: Agent) -> None:
    """Through three times kill -9 and restart, clients that connect every 5 ms are answered, and nothing is written."""
    with (
        Monitor(agent.node.namespace) as monitor,
        _steady_client(world, 4) as outcomes4,
        _steady_client(world, 6) as outcomes6,
    ):
        for _ in range(3):
            agent.kill()
            time.sleep(0.1)
            agent.log.clear()
            agent.start()
            agent.wait_logged("started")
            time.sleep(1)
            assert [line.text for line in monitor.lines()] == []
        # It did compare: what is new now is written, and nothing else.
        agent.settle()
        texts = [line.text for line in monitor.lines() if not declares(line)]
    assert texts
    assert [text for text in texts if not agent.is_marker(text)] == []
    for outcomes in (outcomes4, outcomes6):
        assert len(outcomes) > 100
        assert [outcome for outcome in outcomes if not isinstance(outcome, Answer)] == []


def test_restart_catches_up(world: World, agent: Agent) -> None:
    """What changed while the agent was away is corrected when it comes back, and no connection fails meanwhile."""
    with _steady_client(world, 4) as outcomes:
        agent.kill()
        shape = service("shared", 91, both(80))
        agent.folder.write("services", [shape, *backends(shape, [world.pod("pod-b3")], 8080)])
        agent.start()
        agent.settle()
    assert [outcome for outcome in outcomes if not isinstance(outcome, Answer)] == []
    for family in FAMILIES:
        names = Counter(
            outcome.name if isinstance(outcome, Answer) else outcome
            for outcome in world.client.connect_times(20, SHARED.of(family), 80)
        )
        assert names == {"pod-b3": 20}
    # What nothing leads to any more is removed a little later, for packets that are on their way through it.
    deadline = time.monotonic() + 10
    while left := _left(agent):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def _left(agent: Agent) -> list[str]:
    """Chains and sets of Services that are gone."""
    table = agent.node.namespace.run("nft", "list", "ruleset")
    gone = ("/sticky/", "/balanced/", "/single/", "/outside/", "/empty")
    return [line.strip() for line in table.splitlines() if any(name in line for name in gone)]


def test_sigterm_ends_it_and_leaves_the_rules(world: World, agent: Agent) -> None:
    """SIGTERM: exit code 0, and the rules go on; cleanup takes them away, and may be run again."""
    assert agent.stop() == 0
    for family in FAMILIES:
        assert isinstance(world.client.connect(SHARED.of(family), 80), Answer)
    agent.node.namespace.nft("add table inet mine")
    for _ in range(2):
        agent.command("cleanup")
        for family in FAMILIES:
            with pytest.raises(CommandError, match="No such file"):
                agent.listing(family, "chain", "services")
            assert world.client.connect(SHARED.of(family), 80) == Unreachable()
    assert "table inet mine" in agent.node.namespace.run("nft", "list", "tables")
    agent.start()
    agent.settle()
    assert isinstance(world.client.connect(SHARED.v4, 80), Answer)
