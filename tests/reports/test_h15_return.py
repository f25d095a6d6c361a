"""Another proxy comes back after its rules had been taken over: they are taken over again, each time."""

import time

import pytest

from netns.addresses import FAMILIES
from netns.agent import Agent
from netns.manifests import both, service
from netns.recorded import RELEASES, Release, recording
from netns.world import World
from reports.support import cluster_ip, shared_by, table, until, with_endpoints


@pytest.mark.parametrize("release", RELEASES)
def test_h15_a_kube_proxy_that_comes_back_is_taken_over_again_each_time(
    world: World, agent: Agent, release: Release
) -> None:
    """projectcalico/calico#13328: rules were cleaned up once, and a kube-proxy that started later kept its own.

    For an agent that works, the table is made anew as kube-proxy writes it, without a Service that there is.
    """
    pods = [world.pod("pod-a2"), world.pod("pod-b1")]
    agent.apply(h15=with_endpoints(service("h15", 15, both(80)), pods))
    for _ in range(2):
        before = len(agent.logged("foreign change corrected"))
        time.sleep(1.5)  # what follows within a second of a correction waits for that second to pass
        recording(release).load(agent.node.namespace)
        agent.wait_logged("foreign change corrected", count=before + 2, timeout=15)
        assert shared_by(world.pod("pod-a1"), cluster_ip(15)) == {"pod-a2", "pod-b1"}
        for family in FAMILIES:
            assert "map endpoints-tcp-0" in table(agent, family), "it is in our own form again"


def test_h15_rules_that_are_loaded_over_ours_go(world: World, agent: Agent) -> None:
    """A program that adds its own rules and chains to the table, as kube-proxy would, without making it anew."""
    pods = [world.pod("pod-a2"), world.pod("pod-b1")]
    agent.apply(h15=with_endpoints(service("h15", 15, both(80)), pods))
    before = len(agent.logged("foreign change corrected"))
    agent.node.namespace.nft(
        "table ip kube-proxy {\n"
        " chain services { ip daddr @cluster-ips drop; }\n"
        " chain nat-prerouting { jump services; }\n"
        " chain service-AAAAAAAA-default/h15/tcp/ { meta l4proto tcp dnat to 192.0.2.1:1; }\n"
        "}\n"
        f"insert rule ip kube-proxy services ip daddr {cluster_ip(15).v4} drop"
    )
    agent.wait_logged("foreign change corrected", count=before + 1, timeout=15)
    assert shared_by(world.pod("pod-a1"), cluster_ip(15)) == {"pod-a2", "pod-b1"}
    until(lambda: "AAAAAAAA" not in table(agent, 4))
