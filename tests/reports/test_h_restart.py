"""The node: starts, restarts with other options, clean-up, and what another proxy or another run left."""

import json
import time
from dataclasses import replace

import pytest

from netns.addresses import FAMILIES
from netns.agent import CLUSTER_CIDR, Agent
from netns.manifests import Manifest, both, service
from netns.namespaces import CommandError, Namespace
from netns.recorded import RELEASES, Release, recording
from netns.world import World
from nodeproxy.kube.addresses import Family as ProxyFamily
from nodeproxy.kube.objects import KINDS
from nodeproxy.model.settings import ProxySettings
from reports.support import CLOSED, cluster_ip, ends, fate, steady, vip, with_endpoints
from unit.sync.running import WEB, Speaking, eventually, holds, running
from unit.sync.support import TABLE_FAMILY, Cluster, Table, expected, shop, view

OFF = ProxySettings(cluster_cidrs=("10.244.0.0/16", "fd00:244::/64"))
OPTIONS: dict[str, ProxySettings] = {
    "node ports everywhere": replace(OFF, node_port_addresses=("all",)),
    "node ports nowhere": replace(OFF, node_port_addresses=("localhost",)),
    "a chain for each endpoint": replace(OFF, endpoint_chains="Always"),
    "masquerade all": replace(OFF, masquerade_all=True),
    "another bit": replace(OFF, masquerade_bit=5),
    "no detector": replace(OFF, cluster_cidrs=()),
    "a bridge": replace(OFF, detect_local_mode="BridgeInterface", bridge_interface="cni0"),
}


@pytest.mark.parametrize("family", ProxyFamily)
@pytest.mark.parametrize("option", OPTIONS)
def test_h07_restart_with_another_option_leaves_nothing_of_the_one_before(
    namespace: Namespace, option: str, family: ProxyFamily
) -> None:
    """kubernetes/kubernetes#142183: an option turned on had no effect, since the run before had left its elements.

    Off, on, off and on again, each in a run of its own: the table is each time what it would be on a fresh node.
    """
    del namespace  # the thread is in it
    cluster = Cluster(*shop(family))
    for settings in (OFF, OPTIONS[option], OFF, OPTIONS[option]):
        table = Table(cluster=cluster, family=family, settings=settings)
        table.sync()
        table.tidy()
        assert view(family) == expected(table)


STRAYS = {
    "cluster-ips": "{ip}",
    "nodeport-ips": "{ip}",
    "hairpin-connections": "{ip} . {ip} . tcp . 9999",
    "service-ips": "{ip} . tcp . 9999 : goto reject-chain",
    "service-nodeports": "tcp . 9999 : goto reject-chain",
    "no-endpoint-services": "{ip} . tcp . 9999 : drop",
    "no-endpoint-nodeports": "tcp . 9999 : drop",
    "firewall-ips": "{ip} . tcp . 9999 : goto reject-chain",
    "endpoints-tcp-0": "1000 : {ip} . 9999",
    "endpoint-chains-0": "1000 : goto reject-chain",
}
"""An element for each set and map that is not the clients' memory, of no Service."""


@pytest.mark.parametrize("family", ProxyFamily)
def test_h07_start_compares_the_content_of_every_set_and_map(namespace: Namespace, family: ProxyFamily) -> None:
    """kubernetes/kubernetes#142183: a reject element of the run before stayed in a map that was thought unused.

    An element too many in any set or map, and a set, a map and a chain too many, are gone after the start.
    """
    ip = {ProxyFamily.IPV4: "203.0.113.9", ProxyFamily.IPV6: "2001:db8:113::9"}[family]
    nft_family = TABLE_FAMILY[family]
    table = Table(*shop(family), family=family, settings=OFF)
    table.sync()
    objects = json.loads(namespace.run("nft", "-j", "list", "table", nft_family, "kube-proxy"))["nftables"]
    containers = {one[kind]["name"] for one in objects for kind in ("set", "map") if kind in one}
    assert {name for name in containers if not name.startswith("affinity-")} == set(STRAYS)
    for name, element in STRAYS.items():
        namespace.nft(f"add element {nft_family} kube-proxy {name} {{ {element.format(ip=ip)} }}")
    namespace.nft(
        f"add set {nft_family} kube-proxy stray-set {{ typeof {nft_family} daddr; elements = {{ {ip} }}; }}\n"
        f"add chain {nft_family} kube-proxy stray-chain\n"
        f"add map {nft_family} kube-proxy stray-map {{ type inet_service : verdict; }}\n"
        f"add element {nft_family} kube-proxy stray-map {{ 9999 : goto stray-chain }}\n"
    )
    again = table.again()
    again.sync()
    again.tidy()
    text = namespace.run("nft", "list", "table", nft_family, "kube-proxy")
    assert ip not in text
    assert "9999" not in text
    assert "stray" not in text
    assert view(family) == expected(again)


def test_h07_node_ports_open_and_close_with_restarts(world: World) -> None:
    """kubernetes/kubernetes#142183: the same by packets: an address accepts node ports only while it is meant to."""
    node = world.node("node-a")
    shape = service("ports", 7, both(80, node_port=30007))
    empty = service("empty", 57, both(80, node_port=30057))
    with Agent(node) as agent:
        agent.apply(h07=[*with_endpoints(shape, [world.pod("pod-b1")]), *with_endpoints(empty, [])])
        for value in ("primary", "all", "primary", "all"):
            agent.stop()
            agent.flags = (CLUSTER_CIDR, f"--nodeport-addresses={value}")
            agent.start()
            agent.settle()
            assert fate(world.client, node.addresses, 30007) == "pod-b1 as node"
            assert fate(world.client, node.addresses, 30057) == "rejected"
            if value == "all":
                assert fate(world.client, node.secondary, 30007) == "pod-b1 as node"
                assert fate(world.client, node.secondary, 30057) == "rejected"
            else:
                assert ends(world.client, node.secondary, 30007) == CLOSED
                assert ends(world.client, node.secondary, 30057) == CLOSED
        agent.stop()
        agent.command("cleanup")


OTHERS = """
table ip nat {
    chain KUBE-SERVICES { ip daddr 172.30.0.11 counter drop; }
    chain PREROUTING { type nat hook prerouting priority -90; jump KUBE-SERVICES; }
}
table ip6 nat {
    chain KUBE-SERVICES { ip6 daddr fd00:172:30::11 counter drop; }
}
table inet kube-proxy {
    set mine { type ipv4_addr; }
}
table ip kube-proxy-too {
    chain c { }
}
"""


def _web(world: World) -> list[Manifest]:
    shape = service("web", 11, both(80, node_port=30011), vips=[vip(11)])
    return with_endpoints(shape, [world.pod("pod-b1")])


@pytest.mark.parametrize("release", RELEASES)
def test_h11_clean_up_removes_the_own_tables_and_nothing_else(world: World, release: Release) -> None:
    """kubernetes/kubernetes#102314, #119265: after a change of proxy or mode, old rules stayed and broke traffic.

    The table that kube-proxy left is taken over as a whole; the command for cleaning up removes the tables of both
    families, twice is fine, and never touches anybody else's.
    """
    node = world.node("node-a")
    node.namespace.nft(OTHERS)
    recording(release).load(node.namespace)  # instead of what an earlier test left
    theirs = _without_ours(node.namespace)
    assert fate(world.client, cluster_ip(92)) == "pod-a1 as node"
    with Agent(node) as agent:
        agent.apply(h11=_web(world))
        assert fate(world.client, cluster_ip(11)) == "pod-b1 as node"
        assert fate(world.client, cluster_ip(92)) == "dropped"
        for family in FAMILIES:
            assert "/single/" not in "".join(agent.chains(family))
        assert _without_ours(node.namespace) == theirs
        assert agent.stop() == 0
        assert fate(world.client, cluster_ip(11)) == "pod-b1 as node"
        for _ in range(2):
            agent.command("cleanup")
            for family in FAMILIES:
                with pytest.raises(CommandError, match="No such file"):
                    agent.listing(family, "chain", "services")
            assert _without_ours(node.namespace) == theirs
    for name in ("ip nat", "ip6 nat", "inet kube-proxy", "ip kube-proxy-too"):
        node.namespace.nft(f"delete table {name}")


def _without_ours(namespace: Namespace) -> dict[str, str]:
    """All tables but those of nodeproxy, as listed."""
    names = [line.removeprefix("table ") for line in namespace.run("nft", "list", "tables").splitlines()]
    return {
        name: namespace.run("nft", "-s", "list", "table", *name.split())
        for name in names
        if name not in ("ip kube-proxy", "ip6 kube-proxy")
    }


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_h13_ten_restarts_lose_no_connection(world: World, end: str) -> None:
    """kubernetes/kubernetes#75360, #75283: at each restart, connections failed for seconds.

    The rules stay while the agent is away and while it starts, whether it ended by SIGTERM or was killed.
    """
    with Agent(world.node("node-a")) as agent:
        agent.apply(h13=_web(world))
        with steady(world.client, cluster_ip(11)) as outcomes:
            for _ in range(10):
                if end == "killed":
                    agent.kill()
                else:
                    assert agent.stop() == 0
                agent.start()
                agent.settle(30)
        assert set(outcomes) == {"pod-b1"}, outcomes
        assert outcomes.total() > 100
        agent.stop()


def test_h13_rules_stay_when_the_source_cannot_be_read(world: World) -> None:
    """kubernetes/kubernetes#75360: without its source, the agent says why it ends, and leaves the rules as they are."""
    with Agent(world.node("node-a")) as agent:
        agent.apply(h13=_web(world))
        agent.stop()
        before = [agent.node.namespace.run("nft", "-s", "list", "table", f, "kube-proxy") for f in ("ip", "ip6")]
        with pytest.raises(CommandError, match=r"/nowhere/at/all"):
            agent.command("run", "--manifests=/nowhere/at/all", "--hostname-override=node-a", timeout=20)
        after = [agent.node.namespace.run("nft", "-s", "list", "table", f, "kube-proxy") for f in ("ip", "ip6")]
        assert after == before
        assert fate(world.client, cluster_ip(11)) == "pod-b1 as node"


@pytest.mark.parametrize("missing", KINDS)
def test_h13_rules_stay_until_everything_has_been_listed(namespace: Namespace, missing: str) -> None:
    """kubernetes/kubernetes#75283: nothing is written before Services, slices, Nodes and ServiceCIDRs are complete."""
    for family in ProxyFamily:
        Table(*shop(family), family=family).sync()
    before = {family: view(family) for family in ProxyFamily}
    source = Speaking(*WEB, kinds=tuple(kind for kind in KINDS if kind != missing))
    with running(source):
        time.sleep(0.3)
        assert {family: view(family) for family in ProxyFamily} == before
        source.sink.complete(missing)
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.10"))
        eventually(lambda: not holds(namespace, "cluster-ips", "10.96.0.3,"))
