"""Fixtures for tests that retell a report: a small cluster, and the agent on its first node."""

import contextlib
from collections.abc import Iterator

import pytest

from netns import addresses as plan
from netns.agent import Agent
from netns.matrix.sctp import SctpServers
from netns.world import World
from reports.support import TARGET
from unit.kernel.private_net import namespace, pytest_configure

__all__ = ["namespace", "pytest_configure"]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Two nodes with three pods each, all of which answer at port TARGET over TCP, UDP and SCTP, and a client outside.

    The router has no way to load balancers' addresses and external IPs, and says so.
    """
    with World(nodes=2, pods=3) as world, contextlib.closing(SctpServers()) as sctp:
        world.serve_pods(TARGET)
        for pod in world.pods.values():
            sctp.serve(pod.namespace, pod.name, pod.addresses, TARGET)
        # By itself the router says so a few times, and then once a second (net.ipv4.route.error_burst).
        world.router.ip(
            "link add nowhere type bridge",
            "link set nowhere up",
            *(f"route add {ranges} dev nowhere" for ranges in (*plan.VIPS, *plan.EXTERNAL_IPS)),
        )
        world.router.namespace.nft(
            "table inet nowhere { chain forward { type filter hook forward priority 0; oifname nowhere reject"
            " with icmpx type no-route; }; }"
        )
        yield world


@pytest.fixture(scope="module")
def agent(world: World) -> Iterator[Agent]:
    """The agent on node-a, with its defaults and the cluster's pod range."""
    with Agent(world.node("node-a")) as agent:
        yield agent
