"""How a loss is noticed: the kernel tells, whatever was lost, and an audit finds what it did not tell."""

import re
import time

import pytest

from netns.agent import CLUSTER_CIDR, Agent
from netns.manifests import both, service
from netns.namespaces import Namespace
from netns.world import World
from nodeproxy.kernel.watch import TableWatch, WatchError
from reports.support import cluster_ip, shared_by, with_endpoints
from unit.sync.running import WEB, Speaking, eventually, holds, running

RELOAD = """
flush ruleset
table inet firewalld {
    chain filter_INPUT {
        type filter hook input priority 10; policy accept;
        ct state established,related accept
    }
}
"""


def test_h10_a_firewall_that_reloads_again_and_again_is_followed_each_time(world: World, agent: Agent) -> None:
    """kubernetes/kubernetes#81517: detection by D-Bus was never tested, polling by full rewrites was expensive."""
    web = service("h10", 10, both(80))
    agent.apply(h10=with_endpoints(web, [world.pod("pod-a2"), world.pod("pod-b1")]))
    for _ in range(3):
        before = len(agent.logged("foreign change corrected"))
        time.sleep(1.5)  # what follows within a second of a correction waits for that second to pass
        agent.node.namespace.nft(RELOAD)
        agent.wait_logged("foreign change corrected", count=before + 2, timeout=15)
        assert shared_by(world.pod("pod-a1"), cluster_ip(10)) == {"pod-a2", "pod-b1"}
    assert "firewalld" in agent.node.namespace.run("nft", "list", "tables"), "what others have is left alone"
    agent.node.namespace.nft("delete table inet firewalld")


def test_h10_any_one_part_that_goes_is_noticed(world: World, agent: Agent) -> None:
    """There is no canary that could be the only thing that survives, or the only thing that goes."""
    agent.apply(h10=with_endpoints(service("h10", 10, both(80)), [world.pod("pod-a2"), world.pod("pod-b1")]))
    chain = next(name for name in agent.chains(4) if name.startswith("service-") and "/h10/tcp" in name)
    slots = re.findall("@(endpoints-tcp-[0-9]+)", agent.listing(4, "chain", chain))
    for part in (
        f"flush map ip kube-proxy {slots[0]}",
        "flush chain ip kube-proxy masquerading",
        f"flush chain ip kube-proxy {chain}",
        f"delete element ip kube-proxy cluster-ips {{ {cluster_ip(10).v4} }}",
    ):
        before = len(agent.logged("foreign change corrected"))
        time.sleep(1.5)  # what follows within a second of a correction waits for that second to pass
        agent.node.namespace.nft(part)
        agent.wait_logged("foreign change corrected", count=before + 1, timeout=15)
    assert shared_by(world.pod("pod-a1"), cluster_ip(10)) == {"pod-a2", "pod-b1"}


def test_h10_nothing_is_written_while_nobody_changes_anything(world: World) -> None:
    """An audit every second writes nothing, and says nothing."""
    with Agent(world.node("node-b"), flags=(CLUSTER_CIDR, "--sync-period=1s")) as agent:
        agent.apply(h10=with_endpoints(service("h10", 10, both(80)), [world.pod("pod-a2"), world.pod("pod-b1")]))
        time.sleep(3.0)  # until what went out of use is gone
        before = agent.node.namespace.run("nft", "-a", "list", "ruleset")
        lines = len(agent.log)
        time.sleep(4.0)
        assert agent.node.namespace.run("nft", "-a", "list", "ruleset") == before
        assert agent.log[lines:] == []


def test_h10_what_the_kernel_did_not_tell_is_found_by_the_next_audit(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here nothing is told at all, and the retry interval (30 s by default) is a twentieth of a second."""

    def silent(_: TableWatch) -> None:
        msg = "not in here"
        raise WatchError(msg)

    monkeypatch.setattr(TableWatch, "start", silent)
    with running(Speaking(*WEB)):
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.10"))
        for change in ("flush ruleset", "flush set ip kube-proxy cluster-ips", "delete table ip kube-proxy"):
            namespace.nft(change)
            eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.10"), 15)
