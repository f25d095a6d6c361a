"""The node: its addresses change, its name is not what was thought, and node ports answer where they should."""

from collections.abc import Iterator, Sequence

import pytest

from netns import addresses as plan
from netns.addresses import FAMILIES, Family, Pair
from netns.agent import CLUSTER_CIDR, Agent
from netns.manifests import Manifest, both, cluster, service
from netns.world import Node, World
from reports.support import CLOSED, cluster_ip, ends, fate, shared_by, until, vip, with_endpoints

NIC = Pair("10.99.0.5", "fd00:99::5")
"""What node-a has on a second interface."""
NIC_RANGES = Pair("10.99.0.0/24", "fd00:99::/64")
LOOPBACK = Pair("127.0.0.1", "::1")


def _ported(world: World, number: int, pod: str = "pod-a1") -> list[Manifest]:
    shape = service(f"ports-{number}", number, both(80, node_port=30000 + number))
    return with_endpoints(shape, [world.pod(pod)])


def _cluster(world: World, addresses: Pair | None) -> list[Manifest]:
    """The cluster's Nodes, node-a with other addresses; None: without it."""
    found = []
    for one in cluster(world):
        if one["metadata"]["name"] != "node-a":
            found.append(one)
        elif addresses is not None:
            stated = [{"type": "InternalIP", "address": address} for address in addresses]
            found.append(one | {"status": {"addresses": stated}})
    return found


@pytest.mark.parametrize("how", ["changed", "deleted and added"])
def test_h01_node_ports_follow_the_addresses_of_the_node(world: World, how: str) -> None:
    """kubernetes/kubernetes#138183, #19480: after the Node's address changed, node ports were on the old one.

    A changed Node, and one that is created anew, moves them while the agent runs, and clients of the ClusterIP notice
    nothing of it.
    """
    node = world.node("node-a")
    with Agent(node) as agent:
        agent.apply(h01=_ported(world, 1))
        for addresses, left in ((node.secondary, node.addresses), (node.addresses, node.secondary)):
            if how == "deleted and added":
                agent.apply(cluster=_cluster(world, None))
                assert ends(world.client, left, 30001) == CLOSED
                assert fate(world.client, cluster_ip(1)) == "pod-a1 as node"
            agent.apply(cluster=_cluster(world, addresses))
            assert fate(world.client, addresses, 30001) == "pod-a1 as node"
            assert ends(world.client, left, 30001) == CLOSED
            assert fate(world.client, cluster_ip(1)) == "pod-a1 as node"


def test_h01_node_ports_follow_the_addresses_of_interfaces(world: World) -> None:
    """kubernetes/kubernetes#138183: interfaces that came after the start were not served."""
    node = world.node("node-a")
    wanted = ",".join(NIC_RANGES)
    with Agent(node, [CLUSTER_CIDR, f"--nodeport-addresses={wanted}"]) as agent:
        agent.apply(h01=_ported(world, 1))
        assert [agent.logged("check this", f"IPv{family}", "no interface") != [] for family in FAMILIES] == [True, True]
        for _ in range(2):
            _add_nic(world)
            until(lambda: fate(world.client, NIC, 30001) == "pod-a1 as node")
            node.ip("link delete nic1")
            until(lambda: not any(_holds(agent, family, NIC) for family in FAMILIES))
            assert not fate(world.client, NIC, 30001).startswith("pod-a1")


def _holds(agent: Agent, family: Family, addresses: Pair) -> bool:
    return agent.has_element(family, "nodeport-ips", addresses.of(family))


def _add_nic(world: World) -> None:
    """Give node-a a second interface, to which the client finds the way."""
    node = world.node("node-a")
    node.ip(
        "link add nic1 type bridge",
        *(f"address add {address}/{64 if ':' in address else 24} dev nic1" for address in NIC),
        "link set nic1 up",
    )
    world.client.ip(*(f"route replace {NIC_RANGES.of(f)} via {node.address(f)}" for f in FAMILIES))


def test_h01_masquerading_follows_the_addresses_of_the_node() -> None:
    """kubernetes/kubernetes#19480: after a node's address changed, packets still left with the old one."""
    new = plan.host(plan.UNDERLAY, 77)
    with World(nodes=2, pods=1) as world, Agent(world.node("node-a")) as agent:
        world.serve_pods(8080)
        node = world.node("node-a")
        agent.apply(h01=_ported(world, 1, "pod-b1"))
        assert fate(world.client, node.addresses, 30001) == "pod-b1 as node"
        node.ip(
            *(f"address flush dev eth0 scope global to {plan.UNDERLAY.of(family)}" for family in FAMILIES),
            f"address add {new.v4}/24 dev eth0",
            f"address add {new.v6}/64 dev eth0 nodad",
            *(
                f"route replace {ranges.of(family)} via {via.of(family)}"
                for family in FAMILIES
                for ranges, via in (
                    (Pair("default", "default"), plan.ROUTER),
                    (world.node("node-b").pod_range, world.node("node-b").addresses),
                )
            ),
        )
        agent.apply(cluster=_cluster(world, new))
        answers = {fate(world.client, new, 30001, families=[family]) for family in FAMILIES}
        assert answers == {f"pod-b1 as {new.of(family)}" for family in FAMILIES}


NAMES = {
    "the name": ("node-a", "node-a", "node-a", True, False),
    "the name in upper case": ("NODE-A", "node-a", "node-a", True, False),
    "a name with a domain": ("node-a.example", "node-a.example", "node-a.example", True, False),
    "the domain is missing": ("node-a", "node-a.example", "node-a.example", False, True),
    "the domain is too much": ("node-a.example", "node-a", "node-a", False, True),
    "another name": ("node-x", "node-a", "node-a", False, True),
    "a slice in upper case": ("node-a", "node-a", "NODE-A", False, False),
    "a slice with the beginning of the name": ("node-a", "node-a", "node", False, False),
}


@pytest.mark.parametrize("case", NAMES)
def test_h03_node_name_is_compared_exactly_and_missed_loudly(world: World, case: str) -> None:
    """kubernetes/kubernetes#71851, kubeadm#857, kops#2584: with a host name for the Node's, all pods looked remote.

    Endpoints are local if their nodeName is the name that was given; where no Node has that name, the log says so.
    """
    told, node_name, slice_name, local, warned = NAMES[case]
    shape = service("named", 3, both(80), vips=[vip(3)], externalTrafficPolicy="Local", healthCheckNodePort=31003)
    nodes = cluster(world)
    for one in nodes:
        if one["metadata"]["name"] == "node-a":
            one["metadata"]["name"] = node_name
    with Agent(world.node("node-a"), [CLUSTER_CIDR, f"--hostname-override={told}"]) as agent:
        agent.apply(cluster=nodes, h03=with_endpoints(shape, [world.pod("pod-a1")], nodeName=slice_name))
        assert fate(world.client, vip(3)) == ("pod-a1" if local else "dropped")
        assert fate(world.client, cluster_ip(3)) == "pod-a1 as node"
        said = agent.logged("check this", f"there is no Node {told.lower()}")
        gone = agent.logged("no longer so", f"there is no Node {told.lower()}")
        assert len(said) - len(gone) == int(warned)


@pytest.mark.parametrize("value", ["", "primary", "all", "localhost", "127.0.0.0/8,::1/128"])
def test_h05_node_ports_on_loopback_are_refused_at_once(world: World, value: str) -> None:
    """k0sproject/k0s#5760, kubernetes/kubernetes#138427: a node port on 127.0.0.1 did not work in nftables mode.

    It is not served there (docs/differences.md), and says so at once, whatever the endpoints and the settings.
    """
    node = world.node("node-a")
    local = service("local", 55, both(80, node_port=30055), externalTrafficPolicy="Local")
    empty = service("empty", 105, both(80, node_port=30105))
    objects = [
        *_ported(world, 5, "pod-b1"),
        *with_endpoints(local, [world.pod("pod-b1")]),
        *with_endpoints(empty, []),
    ]
    with Agent(node, [CLUSTER_CIDR, f"--nodeport-addresses={value}"]) as agent:
        agent.apply(h05=objects)
        for number in (30005, 30055, 30105):
            assert ends(node, LOOPBACK, number) == CLOSED, number
        # The route to it that the kernel would have to be talked into is not opened.
        routed = node.namespace.run("cat", "/proc/sys/net/ipv4/conf/all/route_localnet")
        assert routed.strip() == "0"


@pytest.fixture
def two_nics(world: World) -> Iterator[Node]:
    node = world.node("node-a")
    _add_nic(world)
    yield node
    node.ip("link delete nic1")


HERE, SECOND, THERE = "primary", "secondary", "other interface"
VALUES: dict[str, tuple[Sequence[str], Sequence[str], Sequence[Family]]] = {
    # value: what is open over IPv4, what over IPv6, for which families it warns
    "": ([HERE], [HERE], []),
    "primary": ([HERE], [HERE], []),
    "10.0.0.0/8": ([THERE], [], [6]),
    "::/0": ([], [HERE, SECOND, THERE], [4]),
    "primary,10.0.0.0/8": ([HERE, THERE], [HERE], []),
    "all": ([HERE, SECOND, THERE], [HERE, SECOND, THERE], []),
    "0.0.0.0/0,::/0": ([HERE, SECOND, THERE], [HERE, SECOND, THERE], []),
}


@pytest.mark.parametrize("value", VALUES)
def test_h08_node_ports_are_open_where_they_were_asked_for(world: World, two_nics: Node, value: str) -> None:
    """kubernetes/kubernetes#123105, #122724: node ports were open on every interface, or on none of one family.

    By default they are open on the Node's own addresses; a list that holds none of a family of a dual-stack node opens
    nothing there, and there is a warning.
    """
    *opened, warned = VALUES[value]
    with Agent(two_nics, [CLUSTER_CIDR, f"--nodeport-addresses={value}"]) as agent:
        agent.apply(h08=_ported(world, 8))
        addresses = {HERE: two_nics.addresses, SECOND: two_nics.secondary, THERE: NIC}
        for family, wanted in zip(FAMILIES, opened, strict=True):
            answers = {
                name: shared_by(world.client, pair, 30008, families=[family]) for name, pair in addresses.items()
            }
            assert answers == {name: {"pod-a1 as node"} if name in wanted else {"refused"} for name in addresses}
        for family in FAMILIES:
            warnings = [line for line in agent.logged("check this", "NodePorts") if f"IPv{family}" in line]
            assert bool(warnings) == (family in warned)
