"""New connections are shared out evenly, and counted where that was asked for."""

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from netns import addresses as plan
from netns.addresses import FAMILIES, Family
from netns.agent import CLUSTER_CIDR, Agent
from netns.manifests import Manifest, backends, both, service
from netns.probe import Answer
from netns.servers import Protocol
from netns.shares import looks_even
from netns.world import World

PROTOCOLS: tuple[Protocol, Protocol] = ("TCP", "UDP")
CONNECTIONS = 500


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(nodes=2, pods=5) as world:
        world.serve_pods(8080)
        yield world


@pytest.fixture(scope="module")
def other_world() -> Iterator[World]:
    """Without an agent: two on one node, of different settings, would correct each other."""
    with World(nodes=2, pods=5) as world:
        world.serve_pods(8080)
        yield world


def _services(world: World) -> list[Manifest]:
    pods = list(world.pods.values())
    interleaved = pods[::2] + pods[1::2]
    manifests: list[Manifest] = []
    for size in (1, 2, 3, 10):
        shape = service(f"of-{size}", size, both(80))
        manifests += [shape, *backends(shape, interleaved[:size], 8080)]
    sticky = service("sticky-of-3", 13, both(80), affinity_seconds=1)
    return [*manifests, sticky, *backends(sticky, interleaved[:3], 8080)]


@pytest.fixture(scope="module")
def agent(world: World) -> Iterator[Agent]:
    with Agent(world.node("node-a")) as agent:
        agent.apply(services=_services(world))
        yield agent


def _counts(world: World, number: int, family: Family, protocol: Protocol, count: int = CONNECTIONS) -> Counter[str]:
    address = plan.host(plan.SERVICES, number).of(family)
    outcomes = world.client.connect_times(count, address, 80, protocol)
    assert all(isinstance(outcome, Answer) for outcome in outcomes), Counter(outcomes)
    return Counter(outcome.name for outcome in outcomes if isinstance(outcome, Answer))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [2, 3, 10])
def test_connections_are_shared_evenly(
    world: World, agent: Agent, size: int, family: Family, protocol: Protocol
) -> None:
    """Each of 2, 3 or 10 endpoints gets its share, as far as chance lets it."""
    del agent
    counts = _counts(world, size, family, protocol)
    assert len(counts) == size
    assert looks_even(list(counts.values())), counts


@pytest.mark.parametrize("family", FAMILIES)
def test_first_choice_of_sticky_clients_is_even(world: World, agent: Agent, family: Family) -> None:
    """Clients with affinity, each with an address of its own, are shared out evenly as well."""
    del agent
    address = plan.host(plan.SERVICES, 13).of(family)
    counts: Counter[str] = Counter()
    for number in range(1, 241):
        outcome = world.client.connect(address, 80, source=plan.host(plan.INSIDE, number).of(family), timeout=1)
        assert isinstance(outcome, Answer)
        counts[outcome.name] += 1
    assert len(counts) == 3
    assert looks_even(list(counts.values())), counts


def test_uneven_shares_are_recognised() -> None:
    """An endpoint that gets half as much again as its share, or of ten twice its share, is noticed; chance is not."""
    assert not looks_even([375, 125])
    assert not looks_even([250, 125, 125])
    assert not looks_even([100] + [44] * 8 + [48])
    assert looks_even([240, 260])
    assert looks_even([167, 170, 163])
    assert looks_even([50, 45, 57, 61, 40, 48, 52, 47, 44, 56])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [1, 2, 10])
def test_endpoint_chains_count_new_connections(other_world: World, family: Family, size: int) -> None:
    """With a chain for every endpoint, each chain's counter is the number of connections its pod answered."""
    world = other_world
    with Agent(world.node("node-a"), [CLUSTER_CIDR, "--endpoint-chains=Always"]) as agent:
        agent.apply(services=_services(world))
        names = [name for name in agent.chains(family) if re.search(rf"^endpoint-.*/of-{size}/tcp/", name)]
        assert len(names) == size
        before = {name: _packets(agent, family, name) for name in names}
        answered = _counts(world, size, family, "TCP", 100)
        grown = {name: _packets(agent, family, name) - before[name] for name in names}
        by_address = {pod.address(family).replace(":", "."): pod.name for pod in world.pods.values()}
        counted = {by_address[name.rpartition("__")[2].rpartition("/")[0]]: count for name, count in grown.items()}
        assert {name: count for name, count in counted.items() if count} == dict(answered)


def _packets(agent: Agent, family: Family, chain: str) -> int:
    found = re.search(r"counter packets (\d+)", agent.listing(family, "chain", chain))
    assert found is not None
    return int(found[1])
