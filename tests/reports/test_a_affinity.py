"""Wrong rules for a Service's shape: session affinity."""

import re
import time

import pytest

from netns.addresses import FAMILIES, Family
from netns.agent import Agent
from netns.manifests import Manifest, port, service
from netns.world import World
from reports.support import EVERY_PROTOCOL, Kind, choices, cluster_ip, table, until, vip, with_endpoints


@pytest.mark.parametrize("family", FAMILIES)
def test_a30_affinity_is_kept_for_each_service_port(world: World, agent: Agent, family: Family) -> None:
    """kubernetes/kubernetes#103000: is a client's endpoint the same on all ports of a Service?

    No: each port has state of its own (docs/differences.md), so clients draw for each, and stay with each.
    """
    shape = service("ports", 30, [port(80), port(443)], affinity_seconds=600)
    agent.apply(a30=with_endpoints(shape, [world.pod(name) for name in ("pod-a1", "pod-a2", "pod-b1")]))
    to = cluster_ip(30).of(family)
    first = {number: choices(world.client, to, number) for number in (80, 443)}
    assert first[80] != first[443]
    for _ in range(3):
        for number in (80, 443):
            assert choices(world.client, to, number) == first[number]
    sets = set(_affinity_sets(agent, family, "ports"))
    assert len([name for name in sets if "/ports/tcp/p80__" in name]) == 3
    assert len([name for name in sets if "/ports/tcp/p443__" in name]) == 3


@pytest.mark.parametrize("protocol", EVERY_PROTOCOL)
@pytest.mark.parametrize("family", FAMILIES)
def test_a32_affinity_works_for_every_protocol(world: World, agent: Agent, family: Family, protocol: Kind) -> None:
    """antrea-io/antrea#1395: affinity was kept for TCP only.

    Clients over UDP and SCTP stay with their endpoint too, through any of the Service's addresses, and are remembered.
    """
    ports: list[Manifest] = [port(53, one, name=one.lower()) for one in EVERY_PROTOCOL]
    shape = service("every", 32, ports, affinity_seconds=600, vips=[vip(32)])
    agent.apply(a32=with_endpoints(shape, [world.pod(name) for name in ("pod-a1", "pod-a2", "pod-b1")]))
    first = choices(world.client, cluster_ip(32).of(family), 53, protocol)
    assert set(first) == {"pod-a1", "pod-a2", "pod-b1"}
    for _ in range(3):
        assert choices(world.client, cluster_ip(32).of(family), 53, protocol) == first
    assert choices(world.client, vip(32).of(family), 53, protocol) == first
    names = _affinity_sets(agent, family, f"every/{protocol.lower()}")
    clients = sum(agent.listing(family, "set", name).count(" expires ") for name in names)
    assert clients == len(first)


def test_a33_affinity_ends_when_it_is_switched_off(world: World, agent: Agent) -> None:
    """antrea-io/antrea#1570: affinity stayed on after it was switched off, and a new timeout was ignored.

    Off: no state is left, and clients draw again. On with another timeout: new entries last as long as that says.
    """
    pods = [world.pod(name) for name in ("pod-a1", "pod-a2", "pod-b1")]

    def switch(seconds: int) -> None:
        agent.apply(a33=with_endpoints(service("switched", 33, [port(80)], affinity_seconds=seconds), pods))

    def sets() -> dict[str, str]:
        return {
            f"{family}:{name}": definition
            for family in FAMILIES
            for name, definition in _affinity_sets(agent, family, "switched").items()
        }

    switch(10800)
    assert len(sets()) == 6
    assert all("timeout 3h" in definition for definition in sets().values())
    stuck = [choices(world.client, to) for to in cluster_ip(33)]
    assert [choices(world.client, to) for to in cluster_ip(33)] == stuck

    switch(0)
    drawn = [choices(world.client, to) for to in cluster_ip(33)]
    assert all(now != before for now, before in zip(drawn, stuck, strict=True))
    until(lambda: sets() == {})

    switch(5)
    assert len(sets()) == 6
    assert all("timeout 5s" in definition for definition in sets().values())
    assert not any(" expires " in definition for definition in sets().values())
    stuck = [choices(world.client, to) for to in cluster_ip(33)]
    assert [choices(world.client, to) for to in cluster_ip(33)] == stuck
    expires = re.findall(r"expires ([^\s,]+)", "".join(sets().values()))
    assert expires
    assert all(re.fullmatch(r"(5s|[0-4]s)?(\d+ms)?", left) for left in expires), expires

    switch(1)  # while clients are known
    assert all("timeout 1s" in definition for definition in sets().values())
    stuck = [choices(world.client, to) for to in cluster_ip(33)]
    time.sleep(2.2)
    drawn = [choices(world.client, to) for to in cluster_ip(33)]
    assert all(now != before for now, before in zip(drawn, stuck, strict=True))


def _affinity_sets(agent: Agent, family: Family, part: str) -> dict[str, str]:
    """The affinity sets of a Service (or of one of its protocols) by name, each as it is defined and filled."""
    blocks = re.findall(r"^\tset (affinity-\S+) \{(.*?)^\t\}", table(agent, family), re.MULTILINE | re.DOTALL)
    return {name: body for name, body in blocks if f"/{part}/" in name}
