"""Wrong rules for a Service's shape: source ranges, odd spellings and families of addresses."""

from collections.abc import Sequence

import pytest

from netns import addresses as plan
from netns.addresses import FAMILIES, Family
from netns.agent import CLUSTER_CIDR, Agent
from netns.manifests import Manifest, both, endpoint_slice, port_name, service
from netns.namespaces import Namespace
from netns.world import World
from nodeproxy.kube.addresses import Family as ProxyFamily
from reports.support import (
    INSIDE,
    OUTSIDE,
    PROTOCOLS,
    TARGET,
    cluster_ip,
    external_ip,
    fate,
    shared_by,
    table,
    vip,
    with_endpoints,
)
from unit.sync.support import Table
from unit.sync.support import change as decoded

RANGES_ANNOTATION = "service.beta.kubernetes.io/load-balancer-source-ranges"


def _ranged(name: str, number: int, ranges: Sequence[str] = (), annotation: str | None = None) -> Manifest:
    """A Service with a load balancer's address in both families, and source ranges."""
    shape = service(name, number, both(80), vips=[vip(number)], loadBalancerSourceRanges=list(ranges))
    if annotation is not None:
        shape["metadata"]["annotations"] = {RANGES_ANNOTATION: annotation}
    return shape


WRITTEN_BADLY = [f" {plan.INSIDE.v4}", f"{plan.INSIDE.v6} ", "203.0.113.64/26 ", "junk", ""]


@pytest.mark.parametrize("form", ["field", "annotation"])
def test_a05_source_ranges_are_trimmed_and_junk_is_left_out(world: World, agent: Agent, form: str) -> None:
    """kubernetes/kubernetes#94107: a blank in front of a source range crashed a proxy in a loop.

    What can be read counts, also in the old annotation with blanks after its commas; what can't is reported.
    """
    agent.log.clear()
    written = {"ranges": WRITTEN_BADLY} if form == "field" else {"annotation": ", ".join(WRITTEN_BADLY)}
    number = 5 if form == "field" else 55
    agent.apply(**{f"a05{form}": with_endpoints(_ranged(f"trimmed-{form}", number, **written), [world.pod("pod-a1")])})
    assert fate(world.client, vip(number), source=INSIDE) == "pod-a1 as node"
    assert fate(world.client, vip(number), source=OUTSIDE) == "dropped"
    assert agent.wait_logged("input problem", f"trimmed-{form}", "junk")


@pytest.mark.parametrize("form", ["field", "annotation"])
def test_a05_source_ranges_that_are_all_junk_let_nobody_in(world: World, agent: Agent, form: str) -> None:
    """kubernetes/kubernetes#40590: a Service without a readable range is closed, not open; its ClusterIP goes on."""
    written = {"ranges": ["junk", "10.0.0.0/99"]} if form == "field" else {"annotation": "junk, 10.0.0.0/99"}
    number = 105 if form == "field" else 155
    agent.apply(**{f"a05{form}": with_endpoints(_ranged(f"junk-{form}", number, **written), [world.pod("pod-a1")])})
    for origin in (world.client, world.pod("pod-a2"), world.node("node-a")):
        assert fate(origin, vip(number)) == "dropped"
        assert fate(origin, cluster_ip(number)).startswith("pod-a1")
    assert agent.wait_logged("input problem", f"junk-{form}", "closed to all")


@pytest.mark.parametrize("bound", [False, True], ids=["routed", "bound on the node"])
def test_a06_source_ranges_are_looked_at_before_the_destination_is_rewritten(
    world: World, agent: Agent, bound: bool
) -> None:
    """kubernetes/kubernetes#122296: checked after DNAT, source ranges let everybody in.

    Clients in the ranges are answered and others are not, from outside, from pods and from the node, also where the
    load balancer's address is bound on the node.
    """
    number, node = (56 if bound else 6), world.node("node-a")
    ranges = [*plan.INSIDE, f"{world.pod('pod-a2').addresses.v4}/32", f"{world.pod('pod-a2').addresses.v6}/128"]
    agent.apply(
        a06=with_endpoints(_ranged("checked", number, ranges), [world.pod("pod-a1")]),
        a06node=with_endpoints(_ranged("node-too", number + 100, list(plan.UNDERLAY)), [world.pod("pod-a1")]),
    )
    if bound:
        node.ip(*(f"route add local {address} dev eth0" for n in (number, number + 100) for address in vip(n)))
    assert fate(world.client, vip(number), source=INSIDE) == "pod-a1 as node"
    assert fate(world.client, vip(number), source=OUTSIDE) == "dropped"
    assert fate(world.pod("pod-a2"), vip(number)) == "pod-a1 as node"
    assert fate(world.pod("pod-a3"), vip(number)) == "dropped"
    assert fate(node, vip(number), source=node.addresses) == "dropped"
    assert fate(node, vip(number + 100), source=node.addresses) == "pod-a1 as node"


def test_a22_leading_zeros_are_decimal_and_never_reach_the_kernel(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#100895, #126203: Kubernetes reads 010 as ten, and nft as eight.

    ClusterIPs, external IPs, load balancers' addresses, endpoints and source ranges with leading zeros are decimal.
    """
    agent.log.clear()
    families: list[Family] = [4]
    shape = service(
        "zeros",
        22,
        both(80),
        families=families,
        clusterIP="172.030.000.022",
        clusterIPs=["172.030.000.022"],
        externalIPs=["192.168.099.022"],
        loadBalancerSourceRanges=["203.000.113.000/24"],
    )
    shape["status"] = {"loadBalancer": {"ingress": [{"ip": "192.000.002.022"}]}}
    ports = [{"name": port_name(80, protocol), "protocol": protocol, "port": TARGET} for protocol in PROTOCOLS]
    found = endpoint_slice("zeros", 4, [{"addresses": ["10.180.001.010"], "nodeName": "node-a"}], ports)
    agent.apply(a22=[shape, found])
    answer = "pod-a1 as node"
    assert fate(world.client, cluster_ip(22), families=families) == answer
    assert fate(world.client, external_ip(22), families=families) == answer
    assert fate(world.client, vip(22), families=families, source=INSIDE) == answer
    assert fate(world.client, vip(22), families=families, source=OUTSIDE) == "dropped"
    assert fate(world.client, cluster_ip(18), families=families) == "dropped"  # 022 would be 18: nobody's ClusterIP
    for text in ("172.030.000.022", "192.168.099.022", "203.000.113.000/24", "192.000.002.022", "10.180.001.010"):
        assert agent.wait_logged("input problem", f"'{text}' was read as")
        assert text.partition("/")[0] not in table(agent, 4)


def test_a22_kernel_holds_the_decimal_address(namespace: Namespace) -> None:
    """kubernetes/kubernetes#100895: 10.096.011.012 is 10.96.11.12, and nothing is made of 10.96.9.10."""
    spec = {"clusterIP": "10.096.011.012", "ports": [{"port": 80}], "externalIPs": ["10.010.008.001"]}
    Table(decoded("Service", "zeros", "ns", spec=spec), family=ProxyFamily.IPV4).sync()
    text = namespace.run("nft", "list", "table", "ip", "kube-proxy")
    assert "10.96.11.12 " in text
    assert "10.10.8.1 " in text
    assert "10.96.9.10" not in text
    assert "10.8.8.1" not in text


def test_a24_addresses_of_another_family_harm_nobody(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#73157, #87117, #80297, #88316: one address of the other family stopped all updates.

    Each family takes its own from every list, a single-stack Service serves its family only, and source ranges that
    hold none of a family close it.
    """
    pods = [world.pod("pod-a1")]
    single = {
        family: service(
            f"single-v{family}",
            24 + 50 * index,
            both(80),
            families=[family],
            vips=[],
            externalIPs=list(external_ip(24 + 50 * index)),
            type="LoadBalancer",
        )
        for index, family in enumerate(FAMILIES)
    }
    for index, family in enumerate(FAMILIES):
        ingress = [{"ip": address} for address in vip(24 + 50 * index)]
        single[family]["status"] = {"loadBalancer": {"ingress": ingress}}
    dual = service("dual", 124, both(80), externalIPs=list(external_ip(124)), vips=[vip(124)])
    agent.apply(a24=[*with_endpoints(dual, pods), *(one for s in single.values() for one in with_endpoints(s, pods))])
    for index, family in enumerate(FAMILIES):
        other: Family = 6 if family == 4 else 4
        for to in (external_ip(24 + 50 * index), vip(24 + 50 * index)):
            assert fate(world.client, to, families=[family]) == "pod-a1 as node"
            assert fate(world.client, to, families=[other]) == "unreachable"
    for to in (cluster_ip(124), external_ip(124), vip(124)):
        assert fate(world.client, to) == "pod-a1 as node"


def test_a24_source_ranges_of_one_family_close_the_other(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#88316: who lists ranges of one family has not opened the other."""
    pods = [world.pod("pod-a1")]
    four = _ranged("four-only", 174, [plan.INSIDE.v4])
    six = _ranged("six-only", 175, [plan.INSIDE.v6])
    mixed = _ranged("mixed", 176, list(plan.INSIDE))
    agent.apply(a24ranges=[one for shape in (four, six, mixed) for one in with_endpoints(shape, pods)])
    assert fate(world.client, vip(174), families=[4], source=INSIDE) == "pod-a1 as node"
    assert fate(world.client, vip(174), families=[6], source=INSIDE) == "dropped"
    assert fate(world.client, vip(175), families=[4], source=INSIDE) == "dropped"
    assert fate(world.client, vip(175), families=[6], source=INSIDE) == "pod-a1 as node"
    assert fate(world.client, vip(176), source=INSIDE) == "pod-a1 as node"
    assert fate(world.client, vip(176), source=OUTSIDE) == "dropped"


@pytest.mark.parametrize(
    ("value", "served", "warned"),
    [
        ("::1/128,127.0.0.1/32", (), (4, 6)),
        ("10.77.0.0/16", (), (4, 6)),  # no interface has one
        ("10.0.0.0/8", (), (6,)),  # only the pods' gateway
        (plan.UNDERLAY.v4, (4,), (6,)),
        (plan.UNDERLAY.v6, (6,), (4,)),
        (",".join(plan.UNDERLAY), (4, 6), ()),
    ],
)
def test_a25_node_port_addresses_are_split_by_family(
    world: World, value: str, served: Sequence[Family], warned: Sequence[Family]
) -> None:
    """kubernetes/kubernetes#89923: one list for both families bound IPv6 node ports to an IPv4 address.

    Each family takes its own part; where that is empty, no address accepts node ports, and a warning says so.
    """
    node = world.node("node-b")
    shape = service("ports", 25, both(80, node_port=30025))
    with Agent(node, [CLUSTER_CIDR, f"--nodeport-addresses={value}"]) as agent:
        agent.apply(a25=with_endpoints(shape, [world.pod("pod-b1")]))
        for family in FAMILIES:
            answers = shared_by(world.client, node.addresses, 30025, families=[family])
            assert answers == ({f"pod-b1 as {node.gateway.of(family)}"} if family in served else {"refused"})
            elements = agent.listing(family, "set", "nodeport-ips").partition("elements")[2]
            assert (node.address(family) in elements) == (family in served)
            warnings = [line for line in agent.logged("check this", "odePort") if f"IPv{family}" in line]
            assert bool(warnings) == (family in warned)
