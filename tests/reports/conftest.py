"""Fixtures for tests that retell a report: a small cluster, and the agent on its first node."""

from collections.abc import Iterator

import pytest

from netns.agent import Agent
from netns.world import World
from reports.support import TARGET
from unit.kernel.private_net import namespace, pytest_configure

__all__ = ["namespace", "pytest_configure"]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Two nodes with three pods each, all of which answer at port TARGET, and a client outside."""
    with World(nodes=2, pods=3) as world:
        world.serve_pods(TARGET)
        yield world


@pytest.fixture(scope="module")
def agent(world: World) -> Iterator[Agent]:
    """The agent on node-a, with its defaults and the cluster's pod range."""
    with Agent(world.node("node-a")) as agent:
        yield agent
