"""Wrong rules for a Service's shape: somebody reaches themselves through a Service."""

from netns.addresses import Pair
from netns.agent import Agent
from netns.manifests import both, port, service
from netns.world import World
from reports.support import (
    EVERY_PROTOCOL,
    TARGET,
    cluster_ip,
    external_ip,
    fate,
    shared_by,
    vip,
    with_endpoints,
)


def test_a35_pod_reaches_itself_through_every_address_of_its_service(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#53775, cloudnativelabs/kube-router#9: a pod did not reach itself through its own Service.

    It sees the node in place of itself, over every protocol, through every kind of address, under every policy.
    """
    pod, node = world.pod("pod-a1"), world.node("node-a")
    policies = [("Cluster", "Cluster"), ("Local", "Local"), ("Local", "Cluster"), ("Cluster", "Local")]
    objects = []
    frontends: list[tuple[Pair, int]] = []
    for index, (external, internal) in enumerate(policies):
        number = 35 + 50 * index
        shape = service(
            f"itself-{number}",
            number,
            [port(80, protocol, node_port=30000 + number) for protocol in EVERY_PROTOCOL],
            vips=[vip(number)],
            externalIPs=list(external_ip(number)),
            externalTrafficPolicy=external,
            internalTrafficPolicy=internal,
            healthCheckNodePort=31000 + number,
        )
        objects += with_endpoints(shape, [pod])
        frontends += [(cluster_ip(number), 80), (vip(number), 80), (external_ip(number), 80)]
        frontends.append((node.addresses, 30000 + number))
    agent.apply(a35=objects)
    for to, number in frontends:
        assert fate(pod, to, number, protocols=EVERY_PROTOCOL) == "pod-a1 as node", (to, number)


def test_a35_only_the_way_to_itself_is_masqueraded(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#134884: a pod that is one of two endpoints is seen as itself by the other."""
    shape = service("pair", 36, both(80))
    agent.apply(a35pair=with_endpoints(shape, [world.pod("pod-a1"), world.pod("pod-b1")]))
    assert shared_by(world.pod("pod-a1"), cluster_ip(36)) == {"pod-a1 as node", "pod-b1"}
    assert shared_by(world.pod("pod-a2"), cluster_ip(36)) == {"pod-a1", "pod-b1"}


def test_a35_node_reaches_itself_through_a_service(world: World, agent: Agent) -> None:
    """cloudnativelabs/kube-router#9: the same for a pod on the host's network, whose address is the node's."""
    node = world.node("node-a")
    server = node.serve(TARGET)
    shape = service("host", 86, both(80, node_port=30086), vips=[vip(86)])
    agent.apply(a35host=with_endpoints(shape, [node]))
    for to, number in ((cluster_ip(86), 80), (vip(86), 80), (node.addresses, 30086)):
        assert fate(node, to, number).startswith("node-a")
        assert fate(world.pod("pod-a1"), to, number).startswith("node-a")
        assert fate(world.client, to, number).startswith("node-a")
    server.close()
