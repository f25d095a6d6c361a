"""Wrong rules for a Service's shape: traffic policies, affinity of the unready, endpoints that are about to go."""

import pytest

from netns.addresses import FAMILIES
from netns.agent import Agent
from netns.manifests import Manifest, both, endpoint, service
from netns.world import World
from reports.support import (
    DEAD,
    DRAINING,
    NOT_READY,
    choices,
    cluster_ip,
    external_ip,
    fate,
    shared_by,
    slices,
    table,
    until,
    vip,
    with_endpoints,
)


def _external_local(number: int) -> Manifest:
    """A Service with every frontend there is, and externalTrafficPolicy Local."""
    return service(
        f"local-{number}",
        number,
        both(80, node_port=30000 + number),
        vips=[vip(number)],
        externalIPs=list(external_ip(number)),
        externalTrafficPolicy="Local",
        healthCheckNodePort=31000 + number,
    )


@pytest.mark.parametrize("frontend", ["load balancer", "external IP", "node port"])
def test_a01_local_policy_limits_only_what_comes_from_outside(world: World, agent: Agent, frontend: str) -> None:
    """kubernetes/kubernetes#131765, #65387, #75262, #93456: without a local endpoint, the drop hit the node's own too.

    Pods and the node reach endpoints anywhere through external addresses; only what comes from outside is dropped.
    """
    agent.apply(a01=with_endpoints(_external_local(1), [world.pod("pod-b1")]))
    node = world.node("node-a")
    to, port = {
        "load balancer": (vip(1), 80),
        "external IP": (external_ip(1), 80),
        "node port": (node.addresses, 30001),
    }[frontend]
    assert fate(world.pod("pod-a1"), to, port) == "pod-b1"
    assert fate(node, to, port) == "pod-b1 as node"
    assert fate(world.client, to, port) == "dropped"
    agent.apply(a01=with_endpoints(_external_local(1), [world.pod("pod-b1"), world.pod("pod-a2")]))
    assert shared_by(world.client, to, port) == {"pod-a2"}
    assert shared_by(world.pod("pod-a1"), to, port) == {"pod-a2", "pod-b1"}


def test_a03_no_endpoint_anywhere_rejects_and_none_here_drops(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#121371, #112233: a missing local endpoint hangs, a missing endpoint fails at once.

    That is meant so (docs/differences.md), and the same for ClusterIPs, node ports and load balancers' addresses.
    """
    internal = service("internal", 3, both(80), internalTrafficPolicy="Local")
    external = _external_local(53)
    origins = [world.pod("pod-a1"), world.node("node-a"), world.client]
    outside = [(vip(53), 80), (external_ip(53), 80), (world.node("node-a").addresses, 30053)]

    elsewhere = [world.pod("pod-b1")]
    agent.apply(a03=[*with_endpoints(internal, elsewhere), *with_endpoints(external, elsewhere)])
    assert [fate(origin, cluster_ip(3)) for origin in origins] == ["dropped"] * 3
    assert [fate(world.client, *to) for to in outside] == ["dropped"] * 3

    agent.apply(a03=[*with_endpoints(internal, []), *with_endpoints(external, [])])
    assert [fate(origin, cluster_ip(3)) for origin in origins] == ["rejected"] * 3
    assert [fate(world.client, *to) for to in outside] == ["rejected"] * 3

    # What no policy lets pass here is not what is unusable everywhere.
    agent.apply(
        a03=[
            *with_endpoints(internal, elsewhere, **NOT_READY),
            *with_endpoints(external, elsewhere, **NOT_READY),
        ]
    )
    assert [fate(origin, cluster_ip(3)) for origin in origins] == ["rejected"] * 3
    assert [fate(world.client, *to) for to in outside] == ["rejected"] * 3


def _sticky(world: World, *unready: str) -> list[Manifest]:
    shape = service("sticky", 13, both(80), affinity_seconds=600)
    pods = [world.pod("pod-a1"), world.pod("pod-b2")]
    return [
        shape,
        *slices(
            "sticky",
            lambda family: [endpoint(pod, family, **(NOT_READY if pod.name in unready else {})) for pod in pods],
        ),
    ]


def test_a13_clients_do_not_stick_to_endpoints_that_are_not_ready(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#106030: affinity rules for every endpoint led to those that were not ready.

    Nothing in the table names an endpoint that takes no traffic, and without a usable one there is a reject.
    """
    agent.apply(a13=_sticky(world))
    addresses = cluster_ip(13)
    assert all(set(choices(world.client, to)) == {"pod-a1", "pod-b2"} for to in addresses)
    agent.apply(a13=_sticky(world, "pod-b2"))
    assert all(set(choices(world.client, to)) == {"pod-a1"} for to in addresses)
    gone, kept = world.pod("pod-b2").addresses, world.pod("pod-a1").addresses
    until(lambda: not any(address in table(agent, family) for family, address in zip(FAMILIES, gone, strict=True)))
    assert all(address in table(agent, family) for family, address in zip(FAMILIES, kept, strict=True))
    agent.apply(a13=_sticky(world, "pod-b2", "pod-a1"))
    assert fate(world.client, addresses) == "rejected"
    assert fate(world.pod("pod-a2"), addresses) == "rejected"


@pytest.mark.parametrize("remote", ["no other endpoint", "a ready endpoint elsewhere"])
def test_a14_last_local_endpoint_serves_while_it_terminates(world: World, agent: Agent, remote: str) -> None:
    """kubernetes/kubernetes#85643, #96514, #99299: connections were lost while a node's last pod shut down.

    Where the endpoints that the policy leaves have no ready one, those that serve while they terminate step in
    (KEP-1669).
    """
    shape = _external_local(14)
    pods = [world.pod("pod-a1"), *([world.pod("pod-b1")] if remote.startswith("a ready") else [])]
    agent.apply(
        a14=[
            shape,
            *slices(
                "local-14",
                lambda family: [endpoint(pod, family, **(DRAINING if pod.name == "pod-a1" else {})) for pod in pods],
            ),
        ]
    )
    for to, port in ((vip(14), 80), (external_ip(14), 80), (world.node("node-a").addresses, 30014)):
        assert fate(world.client, to, port) == "pod-a1"
    # The rest of the cluster is spared as long as somebody is ready.
    assert fate(world.pod("pod-a2"), cluster_ip(14)) == ("pod-b1" if len(pods) > 1 else "pod-a1")


def test_a14_terminating_endpoint_that_no_longer_serves_takes_nothing(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#97238: only an endpoint that still serves may step in."""
    shape = service("gone", 64, both(80))
    agent.apply(a14gone=with_endpoints(shape, [world.pod("pod-a1")], **DEAD))
    assert fate(world.client, cluster_ip(64)) == "rejected"
    agent.apply(a14gone=with_endpoints(shape, [world.pod("pod-a1")], **DRAINING))
    assert fate(world.client, cluster_ip(64)) == "pod-a1 as node"
