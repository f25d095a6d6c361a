"""The API server goes away and comes back: rules stay, and only what has changed meanwhile is written."""

import re
import time
from collections.abc import Collection, Sequence

import pytest

from cluster.api import Object
from cluster.nodes.fixtures import agents, cluster, space
from cluster.nodes.live import LiveAgent, cut_off
from cluster.nodes.space import BOTH, Space, cluster_ips
from cluster.nodes.ways import expect, expect_still, from_pods
from netns.addresses import FAMILIES, Family
from netns.flips_model import Served
from netns.manifests import endpoint, endpoint_slice
from netns.monitor import Monitor, declares
from netns.probe import Dropped, Rejected
from netns.world import Pod

__all__ = ["agents", "cluster", "space"]

pytestmark = pytest.mark.timeout(240)

LONG = 2.0
"""Seconds for which nothing is to happen."""
BACK = 90.0
"""Seconds after which agents have to be up to date again, however long the outage was: they pause for up to 30 s."""


def _rules(space: Space) -> dict[str, str]:
    """All rules of each node, with their handles."""
    nodes = space.world.nodes.items()
    return {name: node.namespace.run("nft", "-s", "-a", "list", "ruleset") for name, node in nodes}


def test_changes_during_an_outage(space: Space, agents: dict[str, LiveAgent]) -> None:
    """Killed, away, changed, compacted, restarted: rules stay as they are, then follow; what is unchanged stays so.

    Watches can't go on where they were: the versions that they know are gone, so agents list everything anew.
    """
    world, plane = space.world, space.cluster.plane
    ends = {name: space.deploy(name, 2) for name in ("kept", "deleted")}
    tos = {name: cluster_ips(space.serve(name, BOTH)) for name in ends}
    # Without a selector and with slices of our own: right after an outage, controllers are slower than a test can wait.
    tos["moved"] = cluster_ips(space.serve("moved", BOTH, selector=None))
    hosts = [node.pods[max(node.pods)] for node in world.nodes.values()]  # no Pods come there: others are empty
    for family in FAMILIES:
        plane.api.create(_slice(space, family, hosts[:2]))
    ends["moved"] = frozenset(host.name for host in hosts[:2])
    kept = from_pods(world, tos["kept"], 80, Served(ends["kept"], masked=False))
    old = [way for name in ends for way in from_pods(world, tos[name], 80, Served(ends[name], masked=False))]
    expect(world, old)
    time.sleep(2.5)  # what went out of use is removed by then
    before = _rules(space)
    monitors = {name: Monitor(node.namespace) for name, node in world.nodes.items()}
    for monitor in monitors.values():
        monitor.__enter__()
    try:
        plane.stop_apiserver(kill=True)
        time.sleep(LONG)
        expect_still(world, old)
        with cut_off(plane):
            plane.start_apiserver()
            for family in FAMILIES:
                plane.api.replace(_slice(space, family, hosts[1:]))
            space.delete("deleted")
            new = space.serve("new", BOTH, selector={"app": "nobody"})
            plane.compact_etcd()
            plane.restart_apiserver(kill=True)
            expect_still(world, old)
            assert _rules(space) == before
            assert [line for monitor in monitors.values() for line in monitor.lines() if not declares(line)] == []
        moved = frozenset(host.name for host in hosts[1:])
        expect(
            world,
            [
                *kept,
                *from_pods(world, tos["moved"], 80, Served(moved, masked=False)),
                *from_pods(world, tos["deleted"], 80, Dropped),
                *from_pods(world, cluster_ips(new), 80, Rejected),
            ],
            within=BACK,
        )
        time.sleep(2.5)
        written = {name: [line.text for line in monitor.lines()] for name, monitor in monitors.items()}
    finally:
        for monitor in monitors.values():
            monitor.__exit__(None, None, None)
    addresses = {*tos["kept"], *(address for name in ends["kept"] for address in world.pods[name].addresses)}
    for name, lines in written.items():
        assert any(tos["deleted"].v4 in line for line in lines), f"{name} has written what has changed"
        assert [line for line in lines if _is_about(line, f"{space.name}/kept/", addresses)] == [], name
        assert [line for line in lines if _is_about(line, "default/kubernetes/", ())] == [], name
        assert [line for line in lines if "delete table" in line] == [], name
        agents[name].program.check()
        assert agents[name].logged("took_over=") == []


def _slice(space: Space, family: Family, hosts: Sequence[Pod]) -> Object:
    ports = [{"name": port["name"], "port": port["targetPort"], "protocol": port["protocol"]} for port in BOTH]
    return endpoint_slice("moved", family, [endpoint(host, family) for host in hosts], ports, namespace=space.name)


def _is_about(line: str, service: str, addresses: Collection[str]) -> bool:
    """Whether a line that was written is about a Service, given as namespace/name/, or about some addresses."""
    return service in line or any(word in addresses for word in re.findall(r"[0-9a-f.:]+", line))
