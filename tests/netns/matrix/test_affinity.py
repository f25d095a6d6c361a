"""ClientIP affinity over every protocol and family, with and without a chain for every endpoint."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from netns import addresses as plan
from netns.addresses import FAMILIES, Family, Pair
from netns.agent import CLUSTER_CIDR, Agent
from netns.manifests import Manifest, backends, port, service
from netns.matrix.axes import EndpointChains, Protocol
from netns.matrix.sctp import SctpServers, probe_sctp
from netns.matrix.spoilt import TEMPLATES
from netns.matrix.tracking import forget_connections
from netns.probe import Answer, Flow, Rejected, probe
from netns.world import World

pytestmark = pytest.mark.timeout(300)

TARGET, CLIENTS, SHORT = 8080, 24, 3
STEADY, BRIEF, CHANGING, SWITCHED = 61, 62, 63, 64
VIP = plan.host(plan.VIPS, STEADY)
COMBINATIONS = tuple(product(FAMILIES, Protocol))
Choices = dict[tuple[Family, Protocol], list[str]]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with _world() as world:
        yield world


@contextmanager
def _world() -> Iterator[World]:
    with World(nodes=2, pods=3) as world:
        servers = SctpServers()
        try:
            world.serve_pods(TARGET)
            for pod in world.pods.values():
                servers.serve(pod.namespace, pod.name, pod.addresses, TARGET)
            yield world
        finally:
            servers.close()


@pytest.fixture(scope="module", params=EndpointChains, ids=lambda chains: chains.value)
def agent(world: World, request: pytest.FixtureRequest) -> Iterator[Agent]:
    with Agent(world.node("node-a"), [CLUSTER_CIDR, f"--endpoint-chains={request.param.value}"]) as agent:
        yield agent


def sticky(number: int, world: World, *pods: str, seconds: int = 600, **conditions: bool) -> list[Manifest]:
    """A Service over all protocols, with affinity (0 seconds: without), and its endpoints."""
    ports = [port(80, protocol.value, node_port=30000 + number) for protocol in Protocol]
    shape = service(f"s{number}", number, ports, affinity_seconds=seconds, vips=[plan.host(plan.VIPS, number)])
    fields = {"conditions": conditions} if conditions else {}
    return [shape, *backends(shape, [world.pod(name) for name in pods], TARGET, **fields)]


def choices(world: World, to: Pair, number: int = 80) -> Choices:
    """Which endpoint each of the client's addresses gets, in each family over each protocol."""
    forget_connections(world.node("node-a").namespace)
    found: Choices = {}
    for family, protocol in COMBINATIONS:
        flows = [
            Flow(world.client.namespace, to.of(family), number, protocol.value, plan.host(plan.INSIDE, one).of(family))
            for one in range(1, CLIENTS + 1)
        ]
        outcomes = (probe_sctp if protocol is Protocol.SCTP else probe)(flows, 3.0)
        assert all(isinstance(outcome, Answer) for outcome in outcomes), (family, protocol, outcomes)
        found[family, protocol] = [outcome.name for outcome in outcomes if isinstance(outcome, Answer)]
    return found


def same(first: Choices, then: Choices, among: Callable[[str], bool] = lambda name: True) -> dict[object, bool]:
    """For each family and protocol: whether every client of certain endpoints got the same one again."""
    return {key: all(old == new for old, new in zip(first[key], then[key], strict=True) if among(old)) for key in first}


STAYED = dict.fromkeys(COMBINATIONS, True)
MOVED = dict.fromkeys(COMBINATIONS, False)


def test_clients_stay_through_every_address(world: World, agent: Agent) -> None:
    """ClusterIP, load balancer's address and NodePort lead a client to one endpoint; clients are spread over all."""
    agent.apply(steady=sticky(STEADY, world, "pod-a1", "pod-a2", "pod-b1"))
    cluster_ip = plan.host(plan.SERVICES, STEADY)
    first = choices(world, cluster_ip)
    assert all(len(set(names)) == 3 for names in first.values()), first  # by chance not: 2 in 3 ** 22 times
    assert same(first, choices(world, cluster_ip)) == STAYED
    assert same(first, choices(world, VIP)) == STAYED
    assert same(first, choices(world, world.node("node-a").addresses, 30000 + STEADY)) == STAYED


def test_affinity_is_prolonged_by_use_and_ends_without(world: World, agent: Agent) -> None:
    """Clients that come again in time stay for longer than the timeout; after a pause longer than it they are new."""
    agent.apply(brief=sticky(BRIEF, world, "pod-a1", "pod-a2", "pod-b1", seconds=SHORT))
    cluster_ip = plan.host(plan.SERVICES, BRIEF)
    first = choices(world, cluster_ip)
    started = time.monotonic()
    while (last := time.monotonic()) - started < SHORT * 1.3:
        time.sleep(SHORT / 6)
        then = choices(world, cluster_ip)
        if time.monotonic() - last > SHORT * 0.9:  # the machine was too slow to ask in time: begin again
            first, started = then, time.monotonic()
            assert started - last < 60
            continue
        assert same(first, then) == STAYED
    time.sleep(SHORT + 0.5)
    assert same(first, choices(world, cluster_ip)) == MOVED


def test_only_clients_of_an_endpoint_that_goes_move(world: World, agent: Agent) -> None:
    """Endpoints that come, and others that go, move nobody; who had to move stays with the new endpoint after."""
    cluster_ip = plan.host(plan.SERVICES, CHANGING)
    agent.apply(changing=sticky(CHANGING, world, "pod-a1", "pod-a2", "pod-b1"))
    first = choices(world, cluster_ip)
    agent.apply(changing=sticky(CHANGING, world, "pod-a1", "pod-a2", "pod-b1", "pod-a3", "pod-b2"))
    assert same(first, choices(world, cluster_ip)) == STAYED
    agent.apply(changing=sticky(CHANGING, world, "pod-a2", "pod-b1", "pod-a3", "pod-b2"))
    second = choices(world, cluster_ip)
    assert same(first, second, lambda name: name != "pod-a1") == STAYED
    assert all("pod-a1" not in names for names in second.values())
    agent.apply(changing=sticky(CHANGING, world, "pod-a1", "pod-a2", "pod-b1", "pod-a3", "pod-b2"))
    assert same(second, choices(world, cluster_ip)) == STAYED


def test_clients_leave_an_endpoint_that_terminates(world: World, agent: Agent) -> None:
    """An endpoint that terminates loses its clients to those that are ready, though it would still answer."""
    cluster_ip = plan.host(plan.SERVICES, CHANGING)
    agent.apply(changing=sticky(CHANGING, world, "pod-a1", "pod-a2", "pod-b1"))
    first = choices(world, cluster_ip)
    ready, leaving = (
        sticky(CHANGING, world, "pod-a2", "pod-b1"),
        sticky(CHANGING, world, "pod-a1", ready=False, serving=True, terminating=True),
    )
    for here, more in zip(ready[1:], leaving[1:], strict=True):
        here["endpoints"] += more["endpoints"]
    agent.apply(changing=ready)
    second = choices(world, cluster_ip)
    assert same(first, second, lambda name: name != "pod-a1") == STAYED
    assert all("pod-a1" not in names for names in second.values())


def test_clients_come_back_after_all_endpoints_were_gone(world: World, agent: Agent) -> None:
    """Without endpoints everybody is rejected; with new ones everybody is served, and stays."""
    cluster_ip = plan.host(plan.SERVICES, CHANGING)
    agent.apply(changing=sticky(CHANGING, world, "pod-a1", "pod-a2"))
    choices(world, cluster_ip)
    agent.apply(changing=sticky(CHANGING, world))
    for family, protocol in COMBINATIONS:
        flow = Flow(world.client.namespace, cluster_ip.of(family), 80, protocol.value)
        [outcome] = (probe_sctp if protocol is Protocol.SCTP else probe)([flow], 3.0)
        assert isinstance(outcome, Rejected), (family, protocol, outcome)
    agent.apply(changing=sticky(CHANGING, world, "pod-b1", "pod-b2"))
    first = choices(world, cluster_ip)
    assert all(set(names) == {"pod-b1", "pod-b2"} for names in first.values()), first
    assert same(first, choices(world, cluster_ip)) == STAYED


def test_affinity_that_is_switched_off_binds_nobody(world: World, agent: Agent) -> None:
    """Without affinity clients are spread anew each time; switched on again, they stay."""
    cluster_ip = plan.host(plan.SERVICES, SWITCHED)
    pods = "pod-a1", "pod-a2", "pod-b1"
    agent.apply(switched=sticky(SWITCHED, world, *pods))
    first = choices(world, cluster_ip)
    agent.apply(switched=sticky(SWITCHED, world, *pods, seconds=0))
    assert same(first, choices(world, cluster_ip)) == MOVED
    agent.apply(switched=sticky(SWITCHED, world, *pods))
    first = choices(world, cluster_ip)
    assert same(first, choices(world, cluster_ip)) == STAYED


def test_affinity_outlives_restarts_and_what_changed_meanwhile(world: World, agent: Agent) -> None:
    """After kill -9, while the agent is away, and after it came back to other endpoints, clients stay."""
    cluster_ip = plan.host(plan.SERVICES, CHANGING)
    agent.apply(changing=sticky(CHANGING, world, "pod-a1", "pod-a2", "pod-b1"))
    first = choices(world, cluster_ip)
    agent.kill()
    assert same(first, choices(world, cluster_ip)) == STAYED
    agent.folder.write("changing", sticky(CHANGING, world, "pod-a1", "pod-b1", "pod-a3"))
    agent.start()
    agent.settle(30)
    second = choices(world, cluster_ip)
    assert same(first, second, lambda name: name != "pod-a2") == STAYED
    assert all("pod-a2" not in names for names in second.values())
    assert agent.stop() == 0
    assert same(second, choices(world, cluster_ip)) == STAYED
    agent.start()
    agent.settle(30)
    assert same(second, choices(world, cluster_ip)) == STAYED


@pytest.mark.parametrize("chains", EndpointChains, ids=lambda chains: chains.value)
def test_affinity_that_is_not_recorded_is_noticed(chains: EndpointChains, tmp_path: Path) -> None:
    """Were clients not remembered, the comparison that the tests above use would say so."""
    copy = tmp_path / "templates"
    shutil.copytree(TEMPLATES, copy)
    wrong = copy / "endpoint.nft.j2"
    spoilt, count = re.subn(r"\nupdate @.*", "", wrong.read_text())
    assert count == 1
    wrong.write_text(spoilt)
    flags = [CLUSTER_CIDR, f"--endpoint-chains={chains.value}", f"--templates={copy}"]
    # In a world of its own: the other tests' agent would correct this one's rules, and its clients stay where they are.
    with _world() as world, Agent(world.node("node-a"), flags) as agent:
        agent.apply(steady=sticky(STEADY, world, "pod-a1", "pod-a2", "pod-b1"))
        cluster_ip = plan.host(plan.SERVICES, STEADY)
        assert same(choices(world, cluster_ip), choices(world, cluster_ip)) == MOVED
