"""Fixtures: a cluster with three nodes, agents on them, and namespaces for tests."""

from collections.abc import Iterator

import pytest

from cluster.nodes.live import LiveAgent, LiveCluster
from cluster.nodes.space import Space
from cluster.programs import Programs


@pytest.fixture(scope="module")
def cluster(cluster_programs: Programs) -> Iterator[LiveCluster]:
    """A cluster with three nodes; no agent runs on them."""
    with LiveCluster(cluster_programs) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def agents(cluster: LiveCluster) -> Iterator[dict[str, LiveAgent]]:
    """The agents of the nodes."""
    with cluster.agents() as agents:
        yield agents


@pytest.fixture
def space(cluster: LiveCluster, agents: dict[str, LiveAgent]) -> Iterator[Space]:
    """A namespace in a cluster with agents. Whatever Pods are in it are gone before the next test begins."""
    with cluster.plane.new_namespace("nodes") as name:
        space = Space(cluster, name)
        yield space
        space.empty()
    assert cluster.kubelets.errors == []
    for agent in agents.values():
        agent.program.check()
