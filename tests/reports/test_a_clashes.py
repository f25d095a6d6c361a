"""Wrong rules for a Service's shape: two Services that claim the same frontend."""

from collections.abc import Sequence

import pytest

from netns.addresses import Pair
from netns.agent import Agent
from netns.manifests import Manifest, both, service
from netns.namespaces import Namespace
from netns.world import World
from nodeproxy.kube.addresses import Family as ProxyFamily
from reports.support import cluster_ip, created, external_ip, fate, shared_by, steady, vip, with_endpoints
from unit.sync.support import Table, endpoints, gone
from unit.sync.support import service as decoded_service

OLD, YOUNG, ANEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"


def _claims(kind: str, number: int) -> tuple[Pair, dict[str, object], dict[str, object]]:
    """A frontend, and how two Services with ClusterIPs ``number`` and ``number + 1`` come to claim it both."""
    match kind:
        case "external IP twice":
            shared = external_ip(number)
            return shared, {"externalIPs": list(shared)}, {"externalIPs": list(shared)}
        case "load balancer's and external IP":
            shared = vip(number)
            return shared, {"vips": [shared]}, {"externalIPs": list(shared)}
        case "external IP and load balancer's":
            shared = vip(number)
            return shared, {"externalIPs": list(shared)}, {"vips": [shared]}
        case "ClusterIP and external IP":
            shared = cluster_ip(number)
            return shared, {}, {"externalIPs": list(shared)}
        case _:
            shared = cluster_ip(number + 1)
            return shared, {"externalIPs": list(shared)}, {}


KINDS = [
    "external IP twice",
    "load balancer's and external IP",
    "external IP and load balancer's",
    "ClusterIP and external IP",
    "external IP and ClusterIP",
]


@pytest.mark.parametrize("order", ["older first", "younger first", "together"])
@pytest.mark.parametrize("kind", KINDS)
def test_a18_older_of_two_claims_wins_and_the_other_takes_over(
    world: World, agent: Agent, kind: str, order: str
) -> None:
    """kubernetes/kubernetes#69599: which of two Services had an external IP differed from node to node.

    The older one has it, whatever came first; the other is reported and keeps the rest, without a failed connection it
    takes over when the older goes, and keeps what it has when that is created anew.
    """
    number = 100 + 2 * KINDS.index(kind)
    to, older, younger = _claims(kind, number)
    old = with_endpoints(created(service("zz-old", number, both(80), **older), OLD), [world.pod("pod-a1")])
    young = with_endpoints(created(service("aa-young", number + 1, both(80), **younger), YOUNG), [world.pod("pod-b1")])
    agent.apply(a18old=[], a18young=[])
    agent.log.clear()
    steps: list[dict[str, Sequence[Manifest]]] = {
        "older first": [{"a18old": old}, {"a18young": young}],
        "younger first": [{"a18young": young}, {"a18old": old}],
        "together": [{"a18old": old, "a18young": young}],
    }[order]
    for step in steps:
        agent.apply(**step)
    assert shared_by(world.client, to) == {"pod-a1 as node"}
    assert fate(world.client, to) == "pod-a1 as node"
    own = cluster_ip(number + 1)
    if own != to:
        assert fate(world.client, own) == "pod-b1 as node"
    agent.wait_logged("frontend claimed twice", "winner='test/zz-old:p80'", "test/aa-young:p80", count=2)

    with steady(world.client, to) as outcomes:
        agent.apply(a18old=[])
    assert set(outcomes) <= {"pod-a1", "pod-b1"}, outcomes
    assert outcomes
    assert shared_by(world.client, to) == {"pod-b1 as node"}

    agent.apply(a18old=[created(old[0], ANEW), *old[1:]])
    assert shared_by(world.client, to) == {"pod-b1 as node"}
    agent.apply(a18old=old)
    assert shared_by(world.client, to) == {"pod-a1 as node"}
    assert agent.logged("sync failed") == []


def test_a18_of_the_same_age_the_name_decides(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#69599: Services that are equally old are told apart by namespace, then name, everywhere."""
    shapes = {
        name: service(name.partition("/")[2], 118 + index, both(80), namespace=name.partition("/")[0])
        for index, name in enumerate(["b/a", "a/b", "a/c"])
    }
    pods = {"b/a": "pod-a1", "a/b": "pod-a2", "a/c": "pod-b1"}
    for name, shape in shapes.items():
        shape["spec"]["externalIPs"] = list(external_ip(118))
        agent.apply(
            **{f"a18{name[0]}{name[2]}": with_endpoints(created(shape, OLD), [world.pod(pods[name])])},
        )
    assert shared_by(world.client, external_ip(118)) == {"pod-a2 as node"}
    agent.apply(a18ab=[])
    assert shared_by(world.client, external_ip(118)) == {"pod-b1 as node"}
    agent.apply(a18ac=[])
    assert shared_by(world.client, external_ip(118)) == {"pod-a1 as node"}


@pytest.mark.parametrize("family", ProxyFamily)
def test_a18_takeover_is_one_transaction(namespace: Namespace, family: ProxyFamily) -> None:
    """kubernetes/kubernetes#69599: the sync in which the winner leaves gives the frontend to the next in line.

    One key with two verdicts would make the kernel refuse everything ("File exists").
    """
    shared = {ProxyFamily.IPV4: "198.51.100.5", ProxyFamily.IPV6: "2001:db8::5"}[family]
    table = Table(family=family)
    for name, host, time in (("old", 1, OLD), ("young", 2, YOUNG)):
        shape = decoded_service(name, host, family=family, created=time, externalIPs=[shared])
        table.sync(shape, endpoints(name, [host], family=family))
    elements = ("nft", "list", "map", "ip" if family is ProxyFamily.IPV4 else "ip6", "kube-proxy", "service-ips")

    def owner() -> str:
        lines = [line for line in namespace.run(*elements).splitlines() if f"{shared} . tcp" in line]
        assert len(lines) == 1, lines
        return "old" if "/old/" in lines[0] else "young" if "/young/" in lines[0] else lines[0]

    assert owner() == "old"
    assert len(table.sync(gone("Service", "old"))) == 1
    assert owner() == "young"
