"""Three nodes in a real cluster: whatever happens to Deployments and Services, packets go where they should."""

import time

import pytest

from cluster.api import Object
from cluster.nodes.fixtures import agents, cluster, space
from cluster.nodes.live import LiveAgent, LiveCluster
from cluster.nodes.space import BOTH, TCP, Space, cluster_ips, node_port
from cluster.nodes.ways import Way, bystanders, expect, from_nodes, from_pods, to_nodes
from netns import addresses as plan
from netns.addresses import FAMILIES, Pair
from netns.flips_model import Fate, Served
from netns.flips_traffic import Traffic
from netns.manifests import node as node_manifest
from netns.probe import Answer, Dropped, Flow, Refused, Rejected, Unreachable

__all__ = ["agents", "cluster", "space"]

pytestmark = pytest.mark.timeout(240)

NOBODY: frozenset[str] = frozenset()


def _served(ends: frozenset[str], *, masked: bool = False) -> Fate:
    """That one of some Pods answers; without any, that nobody can."""
    return Served(ends, masked) if ends else Rejected


def test_scaling(space: Space) -> None:
    """1, 5, 2, 0, 3 Pods: pods and nodes reach all of them by the ClusterIP, others by each node's port.

    Without Pods, all are rejected.
    """
    space.deploy("web", 0)
    service = space.serve("web", TCP, type="NodePort")
    for replicas in (1, 5, 2, 0, 3):
        ends = space.scale("web", replicas)
        expect(
            space.world,
            [
                *from_pods(space.world, cluster_ips(service), 80, _served(ends), protocols=["TCP"]),
                *from_nodes(space.world, cluster_ips(service), 80, _served(ends, masked=True), protocols=["TCP"]),
                *to_nodes(space.world, node_port(service), _served(ends, masked=True), protocols=["TCP"]),
            ],
        )


def test_readiness(space: Space) -> None:
    """A Pod that is not Ready gets nothing; without any that is Ready all are rejected; those that return serve."""
    ends = sorted(space.deploy("web", 3))
    to = cluster_ips(space.serve("web", BOTH))
    kubelets = space.cluster.kubelets
    pods = kubelets.pods(space.name, "app=web")
    for ready in (ends[1:], ends[2:], [], ends[:1], ends):
        for name, pod in pods.items():
            kubelets.set_ready(pod, ready=name in ready)
        expect(space.world, from_pods(space.world, to, 80, _served(frozenset(ready))))


def test_terminating_pods(space: Space) -> None:
    """Pods that are ending get nothing while there are others, and everything when there are none (KEP-1669)."""
    ends = space.deploy("web", 3)
    to = cluster_ips(space.serve("web", BOTH))
    expect(space.world, from_pods(space.world, to, 80, _served(ends)))
    kubelets, api = space.cluster.kubelets, space.cluster.plane.api
    with kubelets.ends_held_up():
        pods = kubelets.pods(space.name, "app=web")
        ending = sorted(ends)[1:]
        for name in ending:
            api.delete({"apiVersion": "v1", "kind": "Pod", "metadata": pods[name]["metadata"]})
        now = _wait_for_others(space, 3, set(ending))  # the ReplicaSet has new ones come for them
        expect(space.world, from_pods(space.world, to, 80, _served(now)))
        api.patch(
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": space.name}},
            {"spec": {"replicas": 0}},
        )
        expect(space.world, from_pods(space.world, to, 80, _served(now | set(ending))))
    space.ends("web", 0)
    expect(space.world, from_pods(space.world, to, 80, Rejected))


def _wait_for_others(space: Space, count: int, ending: set[str]) -> frozenset[str]:
    deadline = time.monotonic() + 20
    while len(names := space.cluster.kubelets.pods(space.name, "app=web").keys() - ending) < count:
        assert time.monotonic() < deadline, names
        time.sleep(0.05)
    return frozenset(names)


def test_rolling_update(space: Space) -> None:
    """While all Pods are replaced, every attempt from a pod on any node is answered; then only new Pods answer."""
    old = space.deploy("web", 3)
    to = cluster_ips(space.serve("web", BOTH))
    expect(space.world, from_pods(space.world, to, 80, _served(old)))
    flows = {
        f"{name}, IPv{family}": Flow(pod.namespace, to.of(family), 80)
        for name, pod in bystanders(space.world).items()
        for family in FAMILIES
    }
    with Traffic(flows, every=0.05) as traffic:
        new = space.roll("web")
        expect(space.world, from_pods(space.world, to, 80, _served(new), protocols=["TCP"]), forget=False)
    assert new & old == NOBODY
    assert [one for one in traffic.tries if not isinstance(one.outcome, Answer)] == []
    assert len(traffic.tries) > 50


def test_ports_change(space: Space) -> None:
    """A Service's port moves: the old one is rejected, the new one serves; one port becomes two, and one again."""
    ends = space.deploy("web", 2)
    to = cluster_ips(space.serve("web", TCP))
    other = TCP[0] | {"name": "other", "port": 81}
    for ports in (TCP, [other], [*TCP, other], TCP):
        space.change("web", ports=ports)
        numbers = {port["port"] for port in ports}
        expect(
            space.world,
            [
                way
                for number in (80, 81)
                for way in from_pods(
                    space.world, to, number, _served(ends) if number in numbers else Rejected, protocols=["TCP"]
                )
            ],
        )


def test_types_change(space: Space) -> None:
    """ClusterIP, NodePort, LoadBalancer and ClusterIP again: each frontend serves as long as the type has it."""
    ends = space.deploy("web", 3)
    to = cluster_ips(space.serve("web", TCP))
    world, client, first = space.world, space.world.client, space.world.node("node-a")
    vip = plan.host(plan.VIPS, 7)
    port = 31_080
    closed: dict[str, Fate] = {"node": Refused, "vip": Unreachable}

    def check(*served: str) -> None:
        fates = closed | dict.fromkeys(served, _served(ends, masked=True))
        expect(
            world,
            [
                *from_pods(world, to, 80, _served(ends), protocols=["TCP"]),
                *to_nodes(world, port, fates["node"], protocols=["TCP"]),
                Way(client, vip, 80, fates["vip"], first, protocols=["TCP"]),
            ],
        )

    check()
    space.change("web", type="NodePort", ports=[TCP[0] | {"nodePort": port}])
    check("node")
    space.change("web", type="LoadBalancer")
    check("node")
    space.give_vip("web", vip)
    check("node", "vip")
    space.change("web", type="ClusterIP", ports=[TCP[0] | {"nodePort": None}])
    check()


def test_selector_changes(space: Space) -> None:
    """A Service that selects others goes to those, and with a selector that nobody has it rejects."""
    first, second = space.deploy("web", 2), space.deploy("other", 2)
    to = cluster_ips(space.serve("web", BOTH))
    for selector, ends in (("web", first), ("other", second), ("nobody", NOBODY), ("web", first)):
        space.change("web", selector={"app": selector})
        expect(space.world, from_pods(space.world, to, 80, _served(ends)))


def test_service_that_is_deleted_and_comes_back(space: Space) -> None:
    """Its addresses are dropped without it; with its name, other addresses and other Pods, all is as for a new one."""
    ends, others = space.deploy("web", 2), space.deploy("other", 1)
    before = space.serve("web", BOTH)
    expect(space.world, from_pods(space.world, cluster_ips(before), 80, _served(ends)))
    space.delete("web")
    expect(space.world, from_pods(space.world, cluster_ips(before), 80, Dropped))
    after = space.serve("web", BOTH, selector={"app": "other"})
    assert cluster_ips(after) != cluster_ips(before)
    expect(
        space.world,
        [
            *from_pods(space.world, cluster_ips(after), 80, _served(others)),
            *from_pods(space.world, cluster_ips(before), 80, Dropped),
        ],
    )
    space.delete("web")
    ips = list(cluster_ips(before))
    space.serve("web", BOTH, clusterIP=ips[0], clusterIPs=ips)
    expect(
        space.world,
        [
            *from_pods(space.world, cluster_ips(before), 80, _served(ends)),
            *from_pods(space.world, cluster_ips(after), 80, Dropped),
        ],
    )


def test_external_policy_local(space: Space) -> None:
    """Each node's port leads outside clients to its own Pods, unmasqueraded; where there is none it drops.

    Pods go to all Pods, whichever node's address they use. Without any Pod, every node rejects.
    """
    group = {"labels": {"group": "web"}}
    here = {"node-a": space.deploy("one", 1, on="node-a", **group)}
    here["node-b"] = space.deploy("two", 2, on="node-b", **group)
    service = space.serve("web", BOTH, type="NodePort", externalTrafficPolicy="Local", selector={"group": "web"})
    world = space.world
    for deployment, replicas in ((None, 0), ("one", 0), ("one", 2), ("two", 0), ("one", 0)):
        if deployment is not None:
            here["node-a" if deployment == "one" else "node-b"] = space.scale(deployment, replicas)
        everyone = frozenset[str]().union(*here.values())
        nobody_here: Fate = Dropped if everyone else Rejected
        fates = {name: _served(here.get(name, NOBODY)) if here.get(name) else nobody_here for name in world.nodes}
        own = [
            Way(pod, pod.node.addresses, node_port(service), _served(everyone), pod.node)
            for pod in bystanders(world).values()
        ]
        expect(world, [*to_nodes(world, node_port(service), fates, protocols=["TCP"]), *_over_tcp(own)])


def test_internal_policy_local(space: Space) -> None:
    """Pods reach those of their own node only, and nobody where there is none; changed to Cluster, all of them."""
    ends = space.deploy("web", 1, on="node-b")
    service = space.serve("web", BOTH, internalTrafficPolicy="Local")
    to, world = cluster_ips(service), space.world
    for policy in ("Local", "Cluster", "Local"):
        space.change("web", internalTrafficPolicy=policy)
        expect(
            world,
            [
                Way(pod, to, 80, _served(ends) if policy == "Cluster" or name == "node-b" else Dropped, pod.node)
                for name, pod in bystanders(world).items()
            ],
        )


def _over_tcp(ways: list[Way]) -> list[Way]:
    return [Way(way.who, way.to, way.port, way.fate, way.through, protocols=["TCP"]) for way in ways]


def test_namespace_is_deleted(space: Space) -> None:
    """With a namespace all of its Services go; those of others stay."""
    stays = space.deploy("stays", 1)
    kept = cluster_ips(space.serve("stays", BOTH))
    with space.cluster.plane.new_namespace("goes") as name:
        other = Space(space.cluster, name)
        ends = other.deploy("web", 2)
        gone = [cluster_ips(other.serve(service, BOTH, selector={"app": "web"})) for service in ("one", "two")]
        expect(space.world, [way for to in gone for way in from_pods(space.world, to, 80, _served(ends))])
    expect(
        space.world,
        [
            *from_pods(space.world, kept, 80, _served(stays)),
            *(way for to in gone for way in from_pods(space.world, to, 80, Dropped)),
        ],
        within=30,
    )


def test_service_cidr_is_added(space: Space) -> None:
    """Its addresses are dropped from then on, but those that a Service has, as long as it has them."""
    api, world = space.cluster.plane.api, space.world
    ends = space.deploy("web", 2)
    unused, used = Pair("172.31.0.9", "fd00:172:31::9"), Pair("172.31.0.5", "fd00:172:31::5")
    expect(world, from_pods(world, unused, 80, Unreachable))
    cidrs = ["172.31.0.0/24", "fd00:172:31::/112"]
    item: Object = {"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"}}
    api.create(item | {"spec": {"cidrs": cidrs}})
    expect(world, from_pods(world, unused, 80, Dropped))
    space.serve("web", BOTH, clusterIP=used.v4, clusterIPs=list(used))
    expect(world, [*from_pods(world, used, 80, _served(ends)), *from_pods(world, unused, 80, Dropped)])
    space.delete("web")
    expect(world, from_pods(world, used, 80, Dropped))
    api.delete(item)


def test_pod_range_of_a_node_changes(space: Space, cluster: LiveCluster, agents: dict[str, LiveAgent]) -> None:
    """With ``--detect-local-mode=NodeCIDR``, the Node's range says who is masqueraded; registered anew, the new one."""
    ends = space.deploy("web", 2, on="node-a")
    to, api = cluster_ips(space.serve("web", BOTH)), cluster.plane.api
    third = cluster.world.node("node-c")
    pod = bystanders(cluster.world)["node-c"]
    item = node_manifest(third)
    elsewhere = item | {"spec": {"podCIDR": "10.180.99.0/24", "podCIDRs": ["10.180.99.0/24", "fd00:10:180:99::/64"]}}
    agents["node-c"].program.stop()
    try:
        with cluster.agent("node-c", "--detect-local-mode=NodeCIDR"):
            for manifest, masked in ((item, False), (elsewhere, True), (item, False)):
                api.delete(item)
                api.create(manifest)
                expect(cluster.world, [Way(pod, to, 80, _served(ends, masked=masked), third)])
    finally:
        agents["node-c"].program.start()
