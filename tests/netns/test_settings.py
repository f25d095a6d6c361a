"""What the flags change: who counts as a local pod, what is masqueraded, which node addresses accept NodePorts."""

from collections.abc import Iterator, Sequence

import pytest

from netns import addresses as plan
from netns.addresses import FAMILIES, Family
from netns.agent import CLUSTER_CIDR, Agent
from netns.manifests import Manifest, backends, both, service
from netns.namespaces import CommandError
from netns.probe import Answer, Refused, Rejected
from netns.servers import Protocol
from netns.world import BRIDGE, World

PROTOCOLS: tuple[Protocol, Protocol] = ("TCP", "UDP")
PLAIN, LOCAL, PORTS = 71, 72, 73
LOCAL_VIP = plan.host(plan.VIPS, LOCAL)
NODE_PORT = 30073


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(nodes=2, pods=3) as world:
        world.serve_pods(8080)
        yield world


def _services(world: World) -> list[Manifest]:
    a1, b1 = world.pod("pod-a1"), world.pod("pod-b1")
    plain = service("plain", PLAIN, both(80))
    local = service("local", LOCAL, both(80), vips=[LOCAL_VIP], externalTrafficPolicy="Local")
    ports = service("ports", PORTS, both(80, node_port=NODE_PORT))
    return [
        plain,
        *backends(plain, [a1], 8080),
        local,
        *backends(local, [b1], 8080),
        ports,
        *backends(ports, [a1], 8080),
    ]


def _answer(outcome: object) -> Answer:
    assert isinstance(outcome, Answer), outcome
    return outcome


DETECTORS: dict[str, Sequence[str]] = {
    "ClusterCIDR": [CLUSTER_CIDR, "--detect-local-mode=ClusterCIDR"],
    "NodeCIDR": ["--detect-local-mode=NodeCIDR"],
    "BridgeInterface": ["--detect-local-mode=BridgeInterface", f"--pod-bridge-interface={BRIDGE}"],
    "InterfaceNamePrefix": ["--detect-local-mode=InterfaceNamePrefix", f"--pod-interface-name-prefix={BRIDGE[:2]}"],
}


@pytest.mark.parametrize("mode", DETECTORS)
def test_local_pods_are_recognised(world: World, mode: str) -> None:
    """A pod of this node is seen as itself, and takes the short cut to remote endpoints; nobody else does."""
    with Agent(world.node("node-a"), DETECTORS[mode]) as agent:
        agent.apply(services=_services(world))
        for family in FAMILIES:
            for protocol in PROTOCOLS:
                cluster_ip = plan.host(plan.SERVICES, PLAIN).of(family)
                assert not _answer(world.pod("pod-a2").connect(cluster_ip, 80, protocol)).masqueraded
                assert _answer(world.client.connect(cluster_ip, 80, protocol)).masqueraded
                assert _answer(world.node("node-a").connect(cluster_ip, 80, protocol)).masqueraded
                vip = LOCAL_VIP.of(family)
                assert _answer(world.pod("pod-a2").connect(vip, 80, protocol)).name == "pod-b1"
                assert not isinstance(world.client.connect(vip, 80, protocol, timeout=0.1), Answer)


def test_bridge_may_come_later(world: World) -> None:
    """A bridge that is not there yet stops nothing, and counts as soon as it is there."""
    flags = ["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=later0"]
    node = world.node("node-a")
    with Agent(node, flags) as agent:
        agent.apply(services=_services(world))
        cluster_ip = plan.host(plan.SERVICES, PLAIN).v4
        assert _answer(world.pod("pod-a2").connect(cluster_ip, 80)).masqueraded
        node.ip(f"link set {BRIDGE} name later0")
        try:
            assert not _answer(world.pod("pod-a2").connect(cluster_ip, 80)).masqueraded
        finally:
            node.ip(f"link set later0 name {BRIDGE}")


def test_without_detector_only_the_way_back_is_masqueraded(world: World) -> None:
    """Without a cluster CIDR nobody is masqueraded towards ClusterIPs, but a pod that reaches itself."""
    with Agent(world.node("node-a"), []) as agent:
        agent.apply(services=_services(world))
        for family in FAMILIES:
            cluster_ip = plan.host(plan.SERVICES, PLAIN).of(family)
            assert not _answer(world.pod("pod-a2").connect(cluster_ip, 80)).masqueraded
            assert not _answer(world.client.connect(cluster_ip, 80)).masqueraded
            assert _answer(world.pod("pod-a1").connect(cluster_ip, 80)).masqueraded
            assert not isinstance(world.pod("pod-a2").connect(LOCAL_VIP.of(family), 80, timeout=0.1), Answer)


def test_masquerade_all(world: World) -> None:
    """Local pods are masqueraded towards ClusterIPs too."""
    with Agent(world.node("node-a"), [CLUSTER_CIDR, "--masquerade-all"]) as agent:
        agent.apply(services=_services(world))
        for family in FAMILIES:
            for protocol in PROTOCOLS:
                cluster_ip = plan.host(plan.SERVICES, PLAIN).of(family)
                answer = _answer(world.pod("pod-a2").connect(cluster_ip, 80, protocol))
                assert answer.masqueraded
                assert answer.source == world.node("node-a").gateway.of(family)


def _accepts(world: World, family: Family, address: str) -> bool:
    outcome = world.client.connect(address, NODE_PORT)
    assert isinstance(outcome, Answer | Refused)
    udp = world.client.connect(address, NODE_PORT, "UDP")
    assert isinstance(udp, Answer | Rejected)
    assert isinstance(outcome, Answer) == isinstance(udp, Answer), f"TCP and UDP differ in IPv{family}"
    return isinstance(outcome, Answer)


@pytest.mark.parametrize(
    ("value", "primary", "secondary"),
    [
        ("primary", True, False),
        ("all", True, True),
        ("0.0.0.0/0,::/0", True, True),
        (",".join(plan.UNDERLAY), True, True),
        (f"{plan.node_secondary(0).v4}/32,{plan.node_secondary(0).v6}/128", False, True),
        (f"primary,{plan.node_secondary(0).v4}/32,{plan.node_secondary(0).v6}/128", True, True),
    ],
)
def test_node_port_addresses(world: World, value: str, primary: bool, secondary: bool) -> None:
    """NodePorts are accepted on the addresses that were asked for, and on no other."""
    node = world.node("node-a")
    with Agent(node, [CLUSTER_CIDR, f"--nodeport-addresses={value}"]) as agent:
        agent.apply(services=_services(world))
        for family in FAMILIES:
            assert _accepts(world, family, node.address(family)) == primary
            assert _accepts(world, family, node.secondary.of(family)) == secondary
            loopback = "127.0.0.1" if family == 4 else "::1"
            assert node.connect(loopback, NODE_PORT) == Refused()


def test_unknown_mode_is_refused(world: World) -> None:
    """A mode that does not exist ends the agent at once, with a message that names it."""
    agent = Agent(world.node("node-a"))
    try:
        with pytest.raises(CommandError, match="Sideways"):
            agent.command(
                "run",
                f"--manifests={agent.folder.path}",
                "--hostname-override=node-a",
                "--detect-local-mode=Sideways",
                timeout=10,
            )
    finally:
        agent.folder.close()
