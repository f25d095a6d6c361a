"""Other programs flush, delete or edit the rules of Services: they come back at once."""

import time

import pytest

from netns.agent import Agent
from netns.manifests import both, service
from netns.monitor import Monitor, declares
from netns.world import World
from reports.support import cluster_ip, shared_by, with_endpoints

PAUSE = 1.5
"""Seconds from one change to the next: what follows within a second of a correction waits for that second to pass."""
LIMIT = 10.0
"""Seconds within which everything is there again; it takes milliseconds, but the machine may be busy."""

FLUSHES = {
    "flush ruleset": ("flush ruleset", 2),
    "delete own table": ("delete table ip kube-proxy", 1),
    "delete both tables": ("delete table ip kube-proxy; delete table ip6 kube-proxy", 2),
    "flush own chain": ("flush chain ip kube-proxy services; flush chain ip6 kube-proxy services", 2),
    "delete an element": ("delete element ip kube-proxy service-ips {{ {0} . tcp . 80 }}", 1),
    "configuration that begins with a flush": (
        "flush ruleset; table inet filter {{ chain input {{ type filter hook input priority 0; accept; }}; }}",
        2,
    ),
}


@pytest.mark.parametrize(("change", "families"), FLUSHES.values(), ids=FLUSHES.keys())
def test_h09_rules_that_others_flush_come_back_at_once(world: World, agent: Agent, change: str, families: int) -> None:
    """rancher/rke2#10469, k0sproject/k0s#2908, containernetworking/plugins#512: services were down until the next sync.

    The log says who it was, once for each family.
    """
    web = service("h09", 9, both(80))
    agent.apply(h09=with_endpoints(web, [world.pod("pod-a2"), world.pod("pod-b1")]))
    assert shared_by(world.pod("pod-a1"), cluster_ip(9)) == {"pod-a2", "pod-b1"}
    time.sleep(PAUSE)
    before = len(agent.logged("foreign change corrected"))
    begun = time.monotonic()
    agent.node.namespace.nft(change.format(*cluster_ip(9)))
    lines = agent.wait_logged("foreign change corrected", count=before + families, timeout=LIMIT)[before:]
    print(f"corrected {time.monotonic() - begun:.3f} s after the change began")
    assert all("nft" in line for line in lines), "the program is named"
    assert shared_by(world.pod("pod-a1"), cluster_ip(9)) == {"pod-a2", "pod-b1"}


def test_h09_only_what_was_lost_is_written(world: World, agent: Agent) -> None:
    """One element that is deleted is one element that is written, not a table."""
    web = service("h09", 9, both(80))
    agent.apply(h09=with_endpoints(web, [world.pod("pod-a2"), world.pod("pod-b1")]))
    element = f"{{ {cluster_ip(9).v4} . tcp . 80 }}"
    time.sleep(PAUSE)
    with Monitor(agent.node.namespace) as monitor:
        agent.node.namespace.nft(f"delete element ip kube-proxy service-ips {element}")
        monitor.wait_quiet(3.0)
        lines = [line.text for line in monitor.lines() if not declares(line)]
    assert len(lines) == 2, lines
    assert lines[0].startswith("delete element ip kube-proxy service-ips")
    assert lines[1].startswith("add element ip kube-proxy service-ips")
