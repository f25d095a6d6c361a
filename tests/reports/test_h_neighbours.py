"""The node: other software on it, with tables, packet marks, addresses and a firewall of its own."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from netns import addresses as plan
from netns.addresses import FAMILIES, Pair
from netns.agent import CLUSTER_CIDR, Agent
from netns.manifests import both, port, service
from netns.monitor import Monitor
from netns.namespaces import CommandError, Namespace
from netns.world import Host, World
from reports.support import CLOSED, TARGET, cluster_ip, ends, external_ip, fate, vip, with_endpoints

RULES_PAGE = Path(__file__).resolve().parents[2] / "docs" / "rules.md"
FOREIGN_MARK = 0x01000080
OWN_BIT = 0x4000

IPTABLES_TABLES = ("filter", "nat", "mangle", "raw")


@pytest.fixture
def bare_world() -> Iterator[World]:
    with World(nodes=1, pods=1) as world:
        world.serve_pods(TARGET)
        yield world


@pytest.mark.parametrize("present", [False, True], ids=["no table of iptables", "all tables of iptables"])
def test_h16_tables_of_iptables_are_neither_made_nor_touched(bare_world: World, present: bool) -> None:
    """projectcalico/calico#8025, #13323: native rules in the tables of iptables-nft made it refuse to work.

    From start over changes to clean-up, every write to the ruleset is one to table kube-proxy of ip or ip6; tables of
    other programs, theirs with the names that iptables uses included, stay as they are.
    """
    node = bare_world.node("node-a")
    if present:
        for family in ("ip", "ip6"):
            for name in IPTABLES_TABLES:
                node.namespace.nft(
                    f"table {family} {name} {{\n"
                    "    chain OUTPUT { type filter hook output priority 7; policy accept; }\n"
                    "    chain KUBE-MARK { meta mark 0x8000 drop; }\n"
                    "}\n"
                )
    before = node.namespace.run("nft", "list", "ruleset")
    assert bool(before) == present
    shape = service("web", 16, both(80, node_port=30016), vips=[vip(16)], loadBalancerSourceRanges=[*plan.UNDERLAY])
    sticky = service("sticky", 66, both(80), affinity_seconds=100)
    with Monitor(node.namespace) as monitor:
        with Agent(node) as agent:
            pods = list(bare_world.pods.values())
            agent.apply(h16=[*with_endpoints(shape, pods), *with_endpoints(sticky, pods)])
            assert fate(bare_world.client, vip(16)) == "pod-a1 as node"
            agent.apply(h16=with_endpoints(shape, []))
            agent.stop()
            others = re.split(r"(?m)^(?=table )", node.namespace.run("nft", "list", "ruleset"))
            assert "".join(one for one in others if not re.match(r"table ip6? kube-proxy ", one)) == before
            agent.command("cleanup")
        texts = [line.text for line in monitor.lines()]
    assert len(texts) > 50
    assert not _about("add table ip filter", "kube-proxy")
    assert [text for text in texts if not _about(text, "kube-proxy")] == []
    assert node.namespace.run("nft", "list", "ruleset") == before


def _about(text: str, table: str) -> bool:
    """Whether a line of ``nft monitor`` is about a table of that name in ip or ip6, or the rest of such a line."""
    found = re.match(r"(?:add|delete|insert|replace|update) \S+ (ip|ip6|inet|arp|bridge|netdev) (\S+)", text)
    return found is None or (found[1] in ("ip", "ip6") and found[2] == table)


class Marks:
    """A program on a node that marks what comes in and what starts there, and looks at marks where packets leave."""

    def __init__(self, namespace: Namespace, own_bit: int, mark: int = FOREIGN_MARK) -> None:
        self._namespace = namespace
        served = f"meta l4proto {{ tcp, udp }} th dport {TARGET}"
        namespace.nft(
            "table inet marks {\n"
            "    counter kept { }\n    counter lost { }\n    counter asks { }\n    counter outer { }\n"
            f"    chain in {{ type filter hook prerouting priority -300; meta mark set {mark}; }}\n"
            f"    chain own {{ type filter hook output priority -300; meta mark set {mark}; }}\n"
            "    chain out {\n"
            "        type filter hook postrouting priority 300;\n"
            f"        {served} meta mark {mark} counter name kept\n"
            f"        {served} meta mark != {mark} counter name lost\n"
            f"        meta mark & {own_bit} != 0 counter name asks\n"
            "        udp dport 4789 counter name outer\n"
            "    }\n"
            "}\n"
        )

    def __enter__(self) -> "Marks":
        return self

    def __exit__(self, *_: object) -> None:
        self._namespace.nft("delete table inet marks")

    def take(self) -> dict[str, int]:
        """How many packets to the pods' port left with the mark and without, and how many with the own bit; anew."""
        objects = json.loads(self._namespace.run("nft", "-j", "reset", "counters", "table", "inet", "marks"))[
            "nftables"
        ]
        return {one["counter"]["name"]: one["counter"]["packets"] for one in objects if "counter" in one}


@pytest.mark.parametrize(("bit", "mark"), [(14, FOREIGN_MARK), (5, FOREIGN_MARK | OWN_BIT)])
def test_h18_marks_of_others_pass(world: World, bit: int, mark: int) -> None:
    """aws/amazon-vpc-cni-k8s#3563, #3872, tailscale/tailscale#591: programs wrote over each other's packet marks.

    Only the own bit is set, looked at and cleared, whichever it is; all others are as before where a packet leaves.
    """
    node = world.node("node-b")
    shape = service("marked", 18, both(80, node_port=30018))
    with (
        Agent(node, [CLUSTER_CIDR, f"--masquerade-bit={bit}"]) as agent,
        Marks(node.namespace, 1 << bit, mark) as marks,
    ):
        agent.apply(h18=with_endpoints(shape, [world.pod("pod-b1")]))
        gateway = {node.gateway.of(family) for family in FAMILIES}
        ways: list[tuple[Host, Pair, int, bool]] = [
            (world.client, node.addresses, 30018, True),
            (node, node.addresses, 30018, True),
            (node, cluster_ip(18), 80, True),
            (world.pod("pod-b1"), cluster_ip(18), 80, True),
            (world.pod("pod-b2"), cluster_ip(18), 80, False),
            (world.client, world.pod("pod-b1").addresses, TARGET, False),
        ]
        for origin, to, number, masqueraded in ways:
            marks.take()
            answers = {fate(origin, to, number, families=[family]) for family in FAMILIES}
            assert answers == ({f"pod-b1 as {address}" for address in gateway} if masqueraded else {"pod-b1"})
            seen = marks.take()
            assert seen["kept"] >= 4, (origin.name, to)  # two families, two protocols
            assert seen["lost"] == 0, (origin.name, to)


def test_h23_mark_is_gone_where_the_packet_leaves(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#135800: the mark for masquerading outlived its use.

    No packet leaves the node with the bit set.
    """
    shape = service("clean", 23, both(80, node_port=30023), vips=[vip(23)])
    agent.apply(h23=with_endpoints(shape, [world.pod("pod-a1"), world.pod("pod-b1")][:1]))
    node = world.node("node-a")
    with Marks(node.namespace, OWN_BIT, 0) as marks:
        for origin, to, number in (
            (world.client, node.addresses, 30023),
            (world.client, cluster_ip(23), 80),
            (world.client, vip(23), 80),
            (world.pod("pod-a2"), vip(23), 80),
            (world.pod("pod-a1"), cluster_ip(23), 80),
            (node, cluster_ip(23), 80),
        ):
            assert fate(origin, to, number) == "pod-a1 as node"
            seen = marks.take()
            assert seen["kept"] >= 4
            assert seen["asks"] == 0


def test_h23_mark_does_not_reach_the_outer_packet_of_a_tunnel(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#135800: in a VXLAN tunnel, the mark made the outer packet be masqueraded as well.

    The kernel wraps a packet with its mark, so that has to be without the bit when it gets there.
    """
    ends_of_tunnel = {"node-a": 1, "node-b": 2}
    for name, number in ends_of_tunnel.items():
        node, other = world.node(name), world.node("node-b" if name == "node-a" else "node-a")
        try:
            node.ip(
                "link add vx0 type vxlan id 42 dstport 4789 dev eth0"
                f" local {node.addresses.v4} remote {other.addresses.v4}"
            )
        except CommandError as error:
            pytest.skip(f"this kernel makes no VXLAN interfaces: {error}")
        node.ip(
            f"address add 10.42.0.{number}/24 dev vx0",
            f"address add fd00:42::{number}/64 dev vx0 nodad",
            "link set vx0 up",
            f"route replace {other.pod_range.v4} via 10.42.0.{3 - number}",
            f"route replace {other.pod_range.v6} via fd00:42::{3 - number}",
        )
    shape = service("tunnelled", 73, both(80, node_port=30073))
    agent.apply(h23tunnel=with_endpoints(shape, [world.pod("pod-b1")]))
    with Marks(world.node("node-a").namespace, OWN_BIT, 0) as marks:
        answers = {fate(world.client, world.node("node-a").addresses, 30073, families=[family]) for family in FAMILIES}
        assert answers == {"pod-b1 as 10.42.0.1", "pod-b1 as fd00:42::1"}
        seen = marks.take()
    for name in ends_of_tunnel:
        node, other = world.node(name), world.node("node-b" if name == "node-a" else "node-a")
        node.ip("link delete vx0", *(f"route add {other.pod_range.of(f)} via {other.address(f)}" for f in FAMILIES))
    assert seen["outer"] >= 4
    assert seen["asks"] == 0


FIREWALL = """
table inet firewall {
    chain forward { type filter hook forward priority 0; policy drop; }
}
"""


def test_h19_firewall_that_drops_what_is_forwarded_needs_the_rule_of_the_docs(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#18802, #39823, firewalld/firewalld#556: node ports failed where forwarding was dropped.

    No rule in a table of one's own can undo that; docs/rules.md says so, and the rule that it shows makes them work.
    """
    node = world.node("node-a")
    shapes = [
        service("far", 19, both(80, node_port=30019), vips=[vip(19)]),
        service("near", 69, both(80, node_port=30069), vips=[vip(69)]),
    ]
    far, near = (with_endpoints(s, [world.pod(p)]) for s, p in zip(shapes, ("pod-b1", "pod-a1"), strict=True))
    agent.apply(h19=[*far, *near])
    ways: list[tuple[Host, Pair, int, str]] = [
        (world.client, node.addresses, 30019, "pod-b1 as node"),
        (world.client, node.addresses, 30069, "pod-a1 as node"),
        (world.client, vip(19), 80, "pod-b1 as node"),
        (world.client, cluster_ip(69), 80, "pod-a1 as node"),
        (world.pod("pod-a2"), cluster_ip(19), 80, "pod-b1"),
        (world.pod("pod-b2"), node.addresses, 30069, "pod-a1 as node"),
    ]
    documented = re.findall(r"```\n(table inet firewall \{.*?\n\})\n```", RULES_PAGE.read_text(), re.DOTALL)
    assert len(documented) == 1
    try:
        node.namespace.nft(FIREWALL)
        assert [fate(origin, to, number) for origin, to, number, _ in ways] == ["dropped"] * len(ways)
        node.namespace.nft(f"delete table inet firewall\n{documented[0]}")
        assert [fate(*way[:3]) for way in ways] == [way[3] for way in ways]
        # The firewall still does its work for what is no Service's traffic.
        assert fate(world.client, world.pod("pod-a1").addresses, TARGET) == "dropped"
    finally:
        node.namespace.nft("add table inet firewall\ndelete table inet firewall")


@pytest.mark.parametrize("whose", ["this node's", "another node's", "the API server's"])
def test_h21_only_the_declared_port_of_an_external_ip_is_captured(world: World, agent: Agent, whose: str) -> None:
    """kubernetes/kubernetes#127410, #104679, kube-router#1685: an external IP that is a node's cut that node off.

    Port 80 goes to the Service; ssh, the API server and ports on which nobody listens are as they were, from
    everywhere.
    """
    owner = {
        "this node's": world.node("node-a"),
        "another node's": world.node("node-b"),
        "the API server's": world.router,
    }
    host = owner[whose]
    servers = [host.serve(number) for number in (22, 6443)]
    origins: list[Host] = [world.client, world.pod("pod-a1"), world.pod("pod-b1"), world.node("node-a")]
    untouched = [[host.name, host.name, CLOSED, CLOSED]] * len(origins)
    assert [_others(origin, host) for origin in origins] == untouched
    number = 21 + 50 * list(owner).index(whose)
    shape = service(f"greedy-{number}", number, [port(80)], externalIPs=list(host.addresses))
    agent.apply(h21=with_endpoints(shape, [world.pod("pod-a2")]))
    assert fate(world.pod("pod-a1"), host.addresses, 80, protocols=["TCP"]) == "pod-a2 as node"
    assert fate(world.node("node-a"), host.addresses, 80, protocols=["TCP"]) == "pod-a2 as node"
    if whose == "this node's":
        assert fate(world.client, host.addresses, 80, protocols=["TCP"]) == "pod-a2 as node"
    assert [_others(origin, host) for origin in origins] == untouched
    agent.apply(h21=[])
    for server in servers:
        server.close()


def _others(origin: Host, host: Host) -> list[str]:
    """What becomes of traffic to the ports of a host that no Service has."""
    return [
        fate(origin, host.addresses, 22),
        fate(origin, host.addresses, 6443),
        ends(origin, host.addresses, 81),
        ends(origin, host.addresses, 8443),
    ]


def test_h21_external_ip_is_not_bound_on_the_node(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#127410: a proxy bound an external IP on every node, and cut its owner off."""
    shape = service("unbound", 171, [port(80)], externalIPs=list(external_ip(171)))
    before = world.node("node-a").namespace.run("ip", "-o", "address", "show")
    agent.apply(h21unbound=with_endpoints(shape, [world.pod("pod-a2")]))
    assert fate(world.client, external_ip(171), protocols=["TCP"]) == "pod-a2 as node"
    assert re.sub(r"\S+_lft \S+", "", world.node("node-a").namespace.run("ip", "-o", "address", "show")) == re.sub(
        r"\S+_lft \S+", "", before
    )
