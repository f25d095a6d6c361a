"""Wrong rules for a Service's shape: which addresses and ports are taken, and which are left alone."""

import pytest

from netns.agent import Agent
from netns.manifests import Manifest, both, port, service
from netns.world import World
from reports import ping
from reports.support import (
    CLOSED,
    TARGET,
    cluster_ip,
    created,
    ends,
    external_ip,
    fate,
    shared_by,
    until,
    vip,
    with_endpoints,
)


@pytest.mark.parametrize("bound", [False, True], ids=["routed", "bound on the node"])
def test_a08_node_port_answers_on_node_addresses_only(world: World, agent: Agent, bound: bool) -> None:
    """kubernetes/kubernetes#111863, #47723: a node port answered on another Service's load-balancer address.

    It answers on the addresses that are configured for node ports; a load balancer's address has its own ports only,
    also if it is bound on an interface of the node.
    """
    number, node = (58 if bound else 8), world.node("node-a")
    shape = service(f"balanced-{number}", number, both(80, node_port=30000 + number), vips=[vip(number)])
    agent.apply(a08=with_endpoints(shape, [world.pod("pod-b1")]))
    if bound:
        node.ip(*(f"route add local {address} dev lo" for address in vip(number)))
    assert fate(world.client, node.addresses, 30000 + number) == "pod-b1 as node"
    assert fate(world.client, vip(number)) == "pod-b1 as node"
    if bound:
        assert ends(world.client, vip(number), 30000 + number) == CLOSED
    else:
        assert fate(world.client, vip(number), 30000 + number) == "unreachable"
    assert ends(world.client, node.secondary, 30000 + number) == CLOSED


def test_a09_undeclared_ports_of_cluster_ips_are_rejected(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#22952, #122692: a connection to a port that a ClusterIP does not have hung.

    Another port and another protocol are rejected at once, from pods, from the node and from outside.
    """
    shape = service("web", 9, [port(80)])
    agent.apply(a09=with_endpoints(shape, [world.pod("pod-a1")]))
    for origin in (world.pod("pod-a2"), world.node("node-a"), world.client):
        assert fate(origin, cluster_ip(9), protocols=["TCP"]).startswith("pod-a1")
        assert fate(origin, cluster_ip(9), 81) == "rejected"
        assert fate(origin, cluster_ip(9), protocols=["UDP"]) == "rejected"


def test_a09_addresses_other_than_cluster_ips_keep_their_ports_and_ping(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#122692: only ClusterIPs are known to have no other ports; other addresses are left alone.

    A ping to a ClusterIP fails at once, like any packet for none of its ports (docs/differences.md).
    """
    shape = service("open", 59, [port(80)], vips=[vip(59)], externalIPs=list(external_ip(59)))
    agent.apply(a09open=with_endpoints(shape, [world.pod("pod-a1")]))
    for to in (vip(59), external_ip(59)):
        assert fate(world.client, to, protocols=["TCP"]) == "pod-a1 as node"
        assert fate(world.client, to, 81) == "unreachable"
        assert fate(world.client, to, protocols=["UDP"]) == "unreachable"
        assert {ping.echo(world.client.namespace, address) for address in to} == {"unreachable"}
    node = world.node("node-a")
    assert ends(world.client, node.addresses, 81) == CLOSED
    assert {ping.echo(world.client.namespace, address) for address in node.addresses} == {"answered"}
    assert {ping.echo(world.client.namespace, address) for address in cluster_ip(59)} == {"rejected"}


def test_a20_node_port_that_two_services_have_goes_to_one_and_stops_nothing(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#44098, #64466: racing API servers gave one node port to several Services.

    The older Service has it, whatever the order of arrival; the other is reported, keeps its other frontends, and takes
    over. The same number over another protocol is no clash, and what comes after is programmed.
    """
    node = world.node("node-a")
    old = with_endpoints(
        created(service("zz-old", 20, [port(80, node_port=30020)]), "2026-01-01T00:00:00Z"), [world.pod("pod-a1")]
    )
    young = with_endpoints(
        created(service("aa-young", 70, [port(80, node_port=30020)]), "2026-01-02T00:00:00Z"), [world.pod("pod-b1")]
    )
    other = with_endpoints(service("other", 120, [port(80, "UDP", node_port=30020)]), [world.pod("pod-a2")])
    for first, second in ((old, young), (young, old)):
        agent.apply(a20a=[], a20b=[], a20c=[])
        agent.apply(a20a=first, a20c=other)
        agent.log.clear()
        agent.apply(a20b=second)
        assert shared_by(world.client, node.addresses, 30020) == {"pod-a1 as node"}
        assert fate(world.client, node.addresses, 30020, protocols=["UDP"]) == "pod-a2 as node"
        assert fate(world.client, cluster_ip(70), protocols=["TCP"]) == "pod-b1 as node"
        assert agent.wait_logged("frontend claimed twice", "NodePort 30020/TCP", "winner='test/zz-old:p80'", count=2)
    agent.apply(a20a=young, a20b=[])
    assert shared_by(world.client, node.addresses, 30020) == {"pod-b1 as node"}


def test_a27_service_follows_its_type(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#105986, #35354, ingress-nginx#8440, #8308: a change of type left old state, or no traffic.

    ExternalName is not served, its slices notwithstanding; they count as soon as the type is one that is served.
    """
    shape, *found = with_endpoints(service("moving", 27, both(80)), [world.pod("pod-a1")])
    named = shape | {"spec": {"type": "ExternalName", "externalName": "example.org", "ports": shape["spec"]["ports"]}}
    kept = shape | {"spec": shape["spec"] | {"type": "ExternalName", "externalName": "example.org"}}
    agent.apply(a27=[named], a27slices=found)
    assert fate(world.client, cluster_ip(27)) == "dropped"  # a ClusterIP that is nobody's
    for external_name in (named, kept):
        agent.apply(a27=[shape])
        assert fate(world.client, cluster_ip(27)) == "pod-a1 as node"
        agent.apply(a27=[external_name])
        assert fate(world.client, cluster_ip(27)) == "dropped"
    until(lambda: not any("/moving/" in chain for family in (4, 6) for chain in agent.chains(family)))


def test_a27_node_port_goes_with_the_type(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#35354: from NodePort to ClusterIP, the node port goes; and it comes back."""
    node = world.node("node-a")
    open_ = service("changing", 77, both(80, node_port=30077))
    plain = service("changing", 77, both(80))
    for _ in range(2):
        agent.apply(a27type=with_endpoints(open_, [world.pod("pod-b1")]))
        assert fate(world.client, node.addresses, 30077) == "pod-b1 as node"
        agent.apply(a27type=with_endpoints(plain, [world.pod("pod-b1")]))
        assert ends(world.client, node.addresses, 30077) == CLOSED
        assert fate(world.client, cluster_ip(77)) == "pod-b1 as node"


def test_a37_protocol_is_part_of_every_key(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#118107, kube-vip#859: of TCP and UDP on one port number, only one worked.

    Each protocol of one port has endpoints and a node port of its own, though numbers are equal everywhere.
    """
    pod, node = world.pod("pod-a1"), world.node("node-a")
    servers = [
        world.servers.serve(pod.namespace, name, pod.addresses, number, [protocol])
        for name, number, protocol in (("dns", 8053, "UDP"), ("dns-tcp", 8054, "TCP"))
    ]
    ports = [
        port(53, "UDP", name="dns", node_port=30037),
        port(53, "TCP", name="dns-tcp", node_port=30037),
    ]
    shape, *found = with_endpoints(service("dns", 37, ports, vips=[vip(37)], externalIPs=list(external_ip(37))), [pod])
    for one in found:
        one["ports"] = [
            {"name": "dns", "protocol": "UDP", "port": 8053},
            {"name": "dns-tcp", "protocol": "TCP", "port": 8054},
        ]
    agent.apply(a37=[shape, *found])
    frontends = [(cluster_ip(37), 53), (vip(37), 53), (external_ip(37), 53), (node.addresses, 30037)]
    for to, number in frontends:
        assert fate(world.client, to, number, protocols=["UDP"]) == "dns as node"
        assert fate(world.client, to, number, protocols=["TCP"]) == "dns-tcp as node"
    # One protocol loses its endpoints, and the other doesn't.
    for one in found:
        one["ports"] = one["ports"][1:]
    agent.apply(a37=[shape, *found])
    for to, number in frontends:
        assert fate(world.client, to, number, protocols=["UDP"]) == "rejected"
        assert fate(world.client, to, number, protocols=["TCP"]) == "dns-tcp as node"
    for server in servers:
        server.close()


def test_a38_ip_mode_is_decided_for_each_ingress_address(world: World, agent: Agent) -> None:
    """compumike/hairpin-proxy#29, antrea-io/antrea#6274: traffic to a load balancer that adds something was bypassed.

    An address of ipMode Proxy is left to the load balancer, one of ipMode VIP or of none is served here (KEP-1860);
    changes of the status are followed, and the node port does not care.
    """
    node = world.node("node-a")
    modes: list[dict[int, str | None]] = [
        {38: "Proxy", 88: None},
        {38: "VIP", 88: None},
        {38: "Proxy", 88: "VIP"},
        {38: None, 88: "Proxy"},
    ]
    for chosen in modes:
        shape = service("modes", 38, both(80, node_port=30038), vips=[vip(38), vip(88)])
        shape["status"]["loadBalancer"]["ingress"] = [
            {"ip": address} | ({"ipMode": mode} if mode else {})
            for number, mode in chosen.items()
            for address in vip(number)
        ]
        agent.apply(a38=with_endpoints(shape, [world.pod("pod-b1")]))
        for number, mode in chosen.items():
            for origin in (world.pod("pod-a1"), world.client):
                expected = "unreachable" if mode == "Proxy" else "pod-b1 as node"
                assert fate(origin, vip(number)) == expected, (chosen, number, origin.name)
        assert fate(world.client, node.addresses, 30038) == "pod-b1 as node"


def test_a40_external_ips_are_served_whatever_the_type(world: World, agent: Agent) -> None:
    """antrea-io/antrea#1627: external IPs of a ClusterIP Service were not served.

    They are, for every type but ExternalName, and externalTrafficPolicy applies to them.
    """
    pods = [world.pod("pod-a1"), world.pod("pod-b1")]
    shape = service("outside", 40, both(80), externalIPs=list(external_ip(40)))
    assert shape["spec"]["type"] == "ClusterIP"
    agent.apply(a40=with_endpoints(shape, pods))
    assert shared_by(world.client, external_ip(40)) == {"pod-a1 as node", "pod-b1 as node"}

    agent.apply(a40=with_endpoints(_with_spec(shape, externalTrafficPolicy="Local"), pods))
    assert shared_by(world.client, external_ip(40)) == {"pod-a1"}
    agent.apply(a40=with_endpoints(_with_spec(shape, externalTrafficPolicy="Local"), pods[1:]))
    assert fate(world.client, external_ip(40)) == "dropped"
    assert fate(world.pod("pod-a1"), external_ip(40)) == "pod-b1"

    agent.apply(a40=with_endpoints(_with_spec(shape, type="ExternalName", externalName="example.org"), pods))
    assert fate(world.client, external_ip(40)) == "unreachable"


def _with_spec(shape: Manifest, **fields: str) -> Manifest:
    return shape | {"spec": shape["spec"] | fields}


def test_served_port_is_what_tests_take_for_granted(world: World) -> None:
    """The pods serve TARGET, and nothing else: so an answer on another port comes through a rule."""
    assert fate(world.client, world.pod("pod-a1").addresses, TARGET) == "pod-a1"
    assert ends(world.client, world.pod("pod-a1").addresses, 80) == CLOSED
