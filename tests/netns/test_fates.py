"""Where packets to every kind of Service end up, from a pod, from the node, from another node's pod and from outside.

All Services exist at once, and all packets are sent at once; each test then looks at one of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from netns import addresses as plan
from netns.addresses import FAMILIES, Family, Pair
from netns.agent import Agent
from netns.manifests import Manifest, backends, both, service
from netns.probe import Answer, Dropped, Flow, Outcome, Refused, Rejected, probe
from netns.servers import Protocol
from netns.world import Host, World

PROTOCOLS: tuple[Protocol, Protocol] = ("TCP", "UDP")
TARGET = 8080
HOST_PORT = 9090
LOOPBACK = Pair("127.0.0.1", "::1")
NODE_A = plan.node_address(0)
NODE_A_SECONDARY = plan.node_secondary(0)
INSIDE = plan.host(plan.INSIDE, 2)
OUTSIDE = plan.host(plan.OUTSIDE, 2)


def cluster_ip(number: int) -> Pair:
    return plan.host(plan.SERVICES, number)


def vip(number: int) -> Pair:
    return plan.host(plan.VIPS, number)


def external_ip(number: int) -> Pair:
    return plan.host(plan.EXTERNAL_IPS, number)


def services(world: World) -> list[Manifest]:
    """All Services of this module with their endpoints."""
    a1, a2, a3, b1 = (world.pod(name) for name in ("pod-a1", "pod-a2", "pod-a3", "pod-b1"))
    lb = both(80, node_port=30002)
    shapes: list[tuple[Manifest, Sequence[Host], int]] = [
        (service("plain", 41, both(80)), [a1], TARGET),
        (
            service(
                "remote-only",
                42,
                both(80, node_port=30001),
                vips=[vip(42)],
                externalIPs=list(external_ip(42)),
                externalTrafficPolicy="Local",
                healthCheckNodePort=31001,
            ),
            [b1],
            TARGET,
        ),
        (service("node-port", 43, both(80, node_port=30003)), [a2], TARGET),
        (service("external-ip", 44, both(80), externalIPs=list(external_ip(44))), [b1, a2], TARGET),
        (
            service(
                "ranges",
                45,
                lb,
                vips=[vip(45)],
                affinity_seconds=10800,
                loadBalancerSourceRanges=[" 203.0.113.0/25", plan.INSIDE.v6],
            ),
            [a3],
            TARGET,
        ),
        (
            service("empty", 46, both(80, node_port=30006), vips=[vip(46)], externalIPs=list(external_ip(46))),
            [],
            TARGET,
        ),
        (
            service(
                "node-in-range",
                47,
                both(80, node_port=30007),
                vips=[vip(47)],
                loadBalancerSourceRanges=[*plan.INSIDE, *plan.UNDERLAY],
            ),
            [a3],
            TARGET,
        ),
        (
            service(
                "local-external",
                48,
                both(80, node_port=30008),
                vips=[vip(48)],
                externalIPs=list(external_ip(48)),
                externalTrafficPolicy="Local",
                healthCheckNodePort=31002,
            ),
            [a1, b1],
            TARGET,
        ),
        (service("local-internal", 49, both(80), internalTrafficPolicy="Local"), [a1, b1], TARGET),
        (service("local-internal-none", 50, both(80), internalTrafficPolicy="Local"), [b1], TARGET),
        (service("host-network", 51, both(80)), [world.node("node-a"), world.node("node-b")], HOST_PORT),
        (service("host-network-here", 52, both(80)), [world.node("node-a")], HOST_PORT),
        (
            service(
                "empty-ranges", 53, both(80, node_port=30009), vips=[vip(53)], loadBalancerSourceRanges=[*plan.INSIDE]
            ),
            [],
            TARGET,
        ),
    ]
    return [manifest for shape, hosts, target in shapes for manifest in (shape, *backends(shape, hosts, target))]


@dataclass(frozen=True)
class Answered:
    """One of ``names`` answers, and sees the client's own address or one of the node's."""

    names: frozenset[str]
    masqueraded: bool

    def accepts(self, outcome: Outcome, world: World, family: Family) -> bool:
        """Whether an outcome is that."""
        if not isinstance(outcome, Answer) or outcome.name not in self.names:
            return False
        if self.masqueraded:
            return outcome.masqueraded and outcome.source in world.node("node-a").own(family)
        return outcome.source == outcome.client  # its port is another one where two flows would else be the same


@dataclass(frozen=True)
class Fails:
    """It fails in one of these ways."""

    ways: tuple[type[Rejected | Refused | Dropped], ...]

    def accepts(self, outcome: Outcome, world: World, family: Family) -> bool:
        """Whether an outcome is that."""
        del world, family
        return isinstance(outcome, self.ways)


def direct(*names: str) -> Answered:
    """An answer to somebody who is seen as they are."""
    return Answered(frozenset(names), masqueraded=False)


def masked(*names: str) -> Answered:
    """An answer to somebody who is seen as the node."""
    return Answered(frozenset(names), masqueraded=True)


REJECT, DROP = Fails((Rejected,)), Fails((Dropped,))
CLOSED = Fails((Refused, Rejected))  # nobody listens: a reset over TCP, port unreachable over UDP
Row = tuple[str, Pair, int, Answered | Fails, Pair | None]


def row(origin: str, to: Pair, port: int, fate: Answered | Fails, source: Pair | None = None) -> Row:
    return origin, to, port, fate, source


ROWS: dict[str, Row] = {
    # ClusterIP
    "pod reaches a ClusterIP as itself": row("pod-a2", cluster_ip(41), 80, direct("pod-a1")),
    "node reaches a ClusterIP masqueraded": row("node-a", cluster_ip(41), 80, masked("pod-a1")),
    "outside reaches a ClusterIP masqueraded": row("client", cluster_ip(41), 80, masked("pod-a1")),
    "pod reaches itself through a ClusterIP masqueraded": row("pod-a1", cluster_ip(41), 80, masked("pod-a1")),
    "pod is rejected on another port of a ClusterIP": row("pod-a2", cluster_ip(41), 81, REJECT),
    "node is rejected on another port of a ClusterIP": row("node-a", cluster_ip(41), 81, REJECT),
    "outside is rejected on another port of a ClusterIP": row("client", cluster_ip(41), 81, REJECT),
    "pod's packet to an unallocated ClusterIP is dropped": row("pod-a2", cluster_ip(99), 80, DROP),
    "node's packet to an unallocated ClusterIP is dropped": row("node-a", cluster_ip(99), 80, DROP),
    "outside packet to an unallocated ClusterIP is dropped": row("client", cluster_ip(99), 80, DROP),
    # no endpoints
    "pod is rejected by a ClusterIP without endpoints": row("pod-a1", cluster_ip(46), 80, REJECT),
    "node is rejected by a ClusterIP without endpoints": row("node-a", cluster_ip(46), 80, REJECT),
    "outside is rejected by a ClusterIP without endpoints": row("client", cluster_ip(46), 80, REJECT),
    "pod is rejected by a VIP without endpoints": row("pod-a1", vip(46), 80, REJECT),
    "outside is rejected by a VIP without endpoints": row("client", vip(46), 80, REJECT),
    "outside is rejected by an externalIP without endpoints": row("client", external_ip(46), 80, REJECT),
    "outside is rejected by a NodePort without endpoints": row("client", NODE_A, 30006, REJECT),
    "pod is rejected by a NodePort without endpoints": row("pod-a1", NODE_A, 30006, REJECT),
    "outside of the ranges is dropped without endpoints too": row("client", vip(53), 80, DROP, OUTSIDE),
    "inside of the ranges is rejected without endpoints": row("client", vip(53), 80, REJECT, INSIDE),
    # externalTrafficPolicy Local, endpoints elsewhere only
    "pod reaches a Local VIP's remote endpoint as itself": row("pod-a1", vip(42), 80, direct("pod-b1")),
    "pod reaches a Local externalIP's remote endpoint as itself": row("pod-a1", external_ip(42), 80, direct("pod-b1")),
    "node reaches a Local VIP's remote endpoint masqueraded": row("node-a", vip(42), 80, masked("pod-b1")),
    "node reaches its own Local NodePort's remote endpoint masqueraded": row("node-a", NODE_A, 30001, masked("pod-b1")),
    "outside packet to a Local VIP is dropped without a local endpoint": row("client", vip(42), 80, DROP),
    "outside packet to a Local externalIP is dropped without a local endpoint": row(
        "client", external_ip(42), 80, DROP
    ),
    "outside packet to a Local NodePort is dropped without a local endpoint": row("client", NODE_A, 30001, DROP),
    "outside reaches a Local Service's ClusterIP masqueraded": row("client", cluster_ip(42), 80, masked("pod-b1")),
    # externalTrafficPolicy Local, a local and a remote endpoint
    "outside reaches the local endpoint of a Local VIP as itself": row("client", vip(48), 80, direct("pod-a1")),
    "outside reaches the local endpoint of a Local externalIP as itself": row(
        "client", external_ip(48), 80, direct("pod-a1")
    ),
    "outside reaches the local endpoint of a Local NodePort as itself": row("client", NODE_A, 30008, direct("pod-a1")),
    "outside with another address reaches a Local VIP as itself": row("client", vip(48), 80, direct("pod-a1"), OUTSIDE),
    "pod reaches any endpoint of a Local VIP as itself": row("pod-a2", vip(48), 80, direct("pod-a1", "pod-b1")),
    "node reaches any endpoint of a Local VIP masqueraded": row("node-a", vip(48), 80, masked("pod-a1", "pod-b1")),
    # internalTrafficPolicy Local
    "pod stays on its node with internal policy Local": row("pod-a2", cluster_ip(49), 80, direct("pod-a1")),
    "node stays on itself with internal policy Local": row("node-a", cluster_ip(49), 80, masked("pod-a1")),
    "outside stays on the node with internal policy Local": row("client", cluster_ip(49), 80, masked("pod-a1")),
    "pod's packet is dropped with internal policy Local and no local endpoint": row("pod-a2", cluster_ip(50), 80, DROP),
    "node's packet is dropped with internal policy Local and no local endpoint": row(
        "node-a", cluster_ip(50), 80, DROP
    ),
    # NodePort
    "outside reaches a NodePort masqueraded": row("client", NODE_A, 30003, masked("pod-a2")),
    "pod reaches its node's NodePort masqueraded": row("pod-a1", NODE_A, 30003, masked("pod-a2")),
    "pod of another node reaches a NodePort masqueraded": row("pod-b1", NODE_A, 30003, masked("pod-a2")),
    "node reaches its own NodePort masqueraded": row("node-a", NODE_A, 30003, masked("pod-a2")),
    "endpoint reaches itself through a NodePort masqueraded": row("pod-a2", NODE_A, 30003, masked("pod-a2")),
    "secondary node address is left alone": row("client", NODE_A_SECONDARY, 30003, direct("node-a")),
    "loopback is left alone": row("node-a", LOOPBACK, 30003, CLOSED),
    # externalIP
    "outside reaches an externalIP masqueraded": row("client", external_ip(44), 80, masked("pod-a2", "pod-b1")),
    "pod reaches an externalIP masqueraded": row("pod-a1", external_ip(44), 80, masked("pod-a2", "pod-b1")),
    # source ranges
    "inside of the ranges reaches the VIP masqueraded": row("client", vip(45), 80, masked("pod-a3"), INSIDE),
    "outside of the ranges is dropped": row("client", vip(45), 80, DROP, OUTSIDE),
    "client outside of the ranges is dropped with its own address": row("client", vip(45), 80, DROP),
    "pod outside of the ranges is dropped": row("pod-a1", vip(45), 80, DROP),
    "node outside of the ranges is dropped": row("node-a", vip(45), 80, DROP),
    "ranges do not concern the NodePort": row("client", NODE_A, 30002, masked("pod-a3"), OUTSIDE),
    "ranges do not concern the ClusterIP": row("client", cluster_ip(45), 80, masked("pod-a3"), OUTSIDE),
    "node in the ranges reaches the VIP": row("node-a", vip(47), 80, masked("pod-a3")),
    "node in the ranges reaches the VIP with the VIP as its address": row(
        "node-a", vip(47), 80, masked("pod-a3"), vip(47)
    ),
    # endpoints on the host's network
    "pod reaches an endpoint on a host's network as itself": row(
        "pod-a1", cluster_ip(51), 80, direct("node-a", "node-b")
    ),
    # What ends on the node itself never gets to the hook that masquerades.
    "outside reaches an endpoint on the node itself as itself": row("client", cluster_ip(52), 80, direct("node-a")),
    "node reaches an endpoint on itself": row("node-a", cluster_ip(52), 80, masked("node-a")),
}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(nodes=2, pods=3) as world:
        world.serve_pods(TARGET)
        for node in world.nodes.values():
            node.serve(HOST_PORT)
        node_a = world.node("node-a")
        node_a.serve(30003, addresses=NODE_A_SECONDARY)
        # Clouds put a load balancer's address onto the nodes behind it.
        node_a.ip(*(f"route add local {address} dev eth0" for address in vip(47)))
        yield world


@pytest.fixture(scope="module")
def agent(world: World) -> Iterator[Agent]:
    with Agent(world.node("node-a")) as agent:
        agent.apply(services=services(world))
        yield agent


Key = tuple[str, Family, Protocol]


@pytest.fixture(scope="module")
def outcomes(world: World, agent: Agent) -> dict[Key, Outcome]:
    """What became of each row's packet, in both families, over TCP and UDP."""
    del agent
    hosts: dict[str, Host] = {**world.pods, **world.nodes, "client": world.client}
    keys: list[Key] = [(name, family, protocol) for name in ROWS for family in FAMILIES for protocol in PROTOCOLS]
    flows = []
    for name, family, protocol in keys:
        origin, to, port, _, source = ROWS[name]
        address = source.of(family) if source else None
        flows.append(Flow(hosts[origin].namespace, to.of(family), port, protocol, address))
    return dict(zip(keys, probe(flows), strict=True))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ROWS)
def test_fate(name: str, family: Family, protocol: Protocol, world: World, outcomes: dict[Key, Outcome]) -> None:
    """The row's name says what is expected."""
    outcome = outcomes[name, family, protocol]
    expected = ROWS[name][3]
    assert expected.accepts(outcome, world, family), f"{name}: expected {expected}, got {outcome}"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_way_to_itself_is_masqueraded(world: World, agent: Agent, family: Family, protocol: Protocol) -> None:
    """A pod that is one of two endpoints sees itself as the node, and the other endpoint sees the pod."""
    del agent
    pod = world.pod("pod-a2")
    outcomes = pod.connect_times(60, cluster_ip(44).of(family), 80, protocol)
    answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    assert len(answers) == len(outcomes)
    assert {answer.name for answer in answers} == {"pod-a2", "pod-b1"}
    for answer in answers:
        own = world.node("node-a").gateway.of(family)
        assert answer.source == (own if answer.name == "pod-a2" else answer.client), answer


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("frontend", ["ClusterIP", "VIP"])
def test_policy_decides_which_endpoints_are_used(
    world: World, agent: Agent, frontend: str, family: Family, protocol: Protocol
) -> None:
    """External policy Local limits who comes from outside to the local endpoint, and nobody else."""
    del agent
    address = (cluster_ip(48) if frontend == "ClusterIP" else vip(48)).of(family)
    for host, everywhere in ((world.client, frontend == "ClusterIP"), (world.pod("pod-a2"), True)):
        outcomes = host.connect_times(60, address, 80, protocol)
        names = {outcome.name if isinstance(outcome, Answer) else outcome for outcome in outcomes}
        assert names == ({"pod-a1", "pod-b1"} if everywhere else {"pod-a1"})
