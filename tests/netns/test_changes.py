"""The kernel follows the folder: quickly, wholly, and never because of a broken file."""

import statistics
import time
from collections.abc import Callable, Iterator

import pytest

from netns import addresses as plan
from netns.agent import Agent
from netns.manifests import Manifest, backends, both, service
from netns.monitor import Monitor
from netns.probe import Answer, Rejected
from netns.world import World

BOUND = 0.1
"""Seconds within which a change of the folder, after idling, is in the kernel."""

EDITED, DELETED, MOVED = (plan.host(plan.SERVICES, number).v4 for number in (81, 82, 83))
IDLE = 1.2


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(nodes=2, pods=3) as world:
        world.serve_pods(8080)
        yield world


@pytest.fixture(scope="module")
def agent(world: World) -> Iterator[Agent]:
    with Agent(world.node("node-a")) as agent:
        yield agent


@pytest.fixture
def calm(agent: Agent) -> None:
    """What earlier tests left has been removed."""
    with Monitor(agent.node.namespace) as monitor:
        monitor.wait_quiet(2.5)


def _one(world: World, number: int, pod: str) -> list[Manifest]:
    shape = service(f"svc-{number}", number, both(80))
    return [shape, *backends(shape, [world.pod(pod)], 8080)]


def _name(world: World, address: str, timeout: float = 0.2) -> str | None:
    """Who answers at port 80; None: nobody."""
    outcome = world.client.connect(address, 80, timeout=timeout)
    return outcome.name if isinstance(outcome, Answer) else None


def _until(condition: Callable[[], bool], timeout: float = 5) -> float:
    """Seconds until a condition, looked at without pause, holds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout, "it never came"
    return time.monotonic() - started


def test_batch_is_in_the_kernel_within_100_ms(world: World, agent: Agent) -> None:
    """After idling, an edit, a delete and a rename in one batch are followed by packets within 100 ms."""
    took = []
    for _ in range(5):
        agent.apply(
            edited=_one(world, 81, "pod-a1"), deleted=_one(world, 82, "pod-a2"), moved=_one(world, 83, "pod-a3")
        )
        assert [_name(world, address) for address in (EDITED, DELETED, MOVED)] == ["pod-a1", "pod-a2", "pod-a3"]
        time.sleep(IDLE)
        ready = agent.folder.stage(_one(world, 81, "pod-b1"))
        renamed = agent.folder.file("renamed")
        ready.rename(agent.folder.file("edited"))
        agent.folder.delete("deleted")
        agent.folder.file("moved").rename(renamed)
        # A packet that is dropped costs the whole timeout, so that one is short.
        took.append(_until(lambda: _name(world, EDITED) == "pod-b1" and _name(world, DELETED, 0.01) is None))
        assert [_name(world, address) for address in (EDITED, DELETED, MOVED)] == ["pod-b1", None, "pod-a3"]
        agent.settle()
        assert _name(world, MOVED) == "pod-a3"
        renamed.unlink()
    assert statistics.median(took) <= BOUND, took


def test_rename_alone_writes_nothing(world: World, agent: Agent) -> None:
    """A file that only changes its name is the same objects: its rules are left alone."""
    agent.apply(moved=_one(world, 83, "pod-a3"))
    with Monitor(agent.node.namespace) as monitor:
        agent.folder.file("moved").rename(agent.folder.file("renamed"))
        agent.settle()
        assert [line.text for line in monitor.lines() if "svc-83" in line.text or MOVED in line.text] == []
    assert _name(world, MOVED) == "pod-a3"
    agent.apply(renamed=[])
    assert _name(world, MOVED) is None


def test_one_change_costs_what_it_changes(world: World, agent: Agent) -> None:
    """When a Service gets another endpoint, nothing of its neighbours is written."""
    agent.apply(edited=_one(world, 81, "pod-a1"), deleted=_one(world, 82, "pod-a2"))
    with Monitor(agent.node.namespace) as monitor:
        agent.apply(edited=_one(world, 81, "pod-a2"))
        texts = [line.text for line in monitor.lines()]
    assert any("svc-81" in text for text in texts)
    assert [text for text in texts if "svc-82" in text or DELETED in text] == []


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "\x00\x01\x02",
        '{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a; drop", "namespace": "x"}, "spec": {}}',
        '{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"clusterIP": 5}}',
        "[1, 2, 3]",
    ],
)
@pytest.mark.usefixtures("calm")
def test_broken_file_changes_nothing(world: World, agent: Agent, text: str) -> None:
    """A file that cannot be read leaves the rules as they are, and later changes of others are followed."""
    agent.apply(edited=_one(world, 81, "pod-a1"))
    with Monitor(agent.node.namespace) as monitor:
        agent.folder.write_text("broken", text)
        agent.wait_logged("broken", count=1)
        time.sleep(0.2)
        assert monitor.lines() == []
    assert _name(world, EDITED) == "pod-a1"
    agent.apply(edited=_one(world, 81, "pod-a2"))
    assert _name(world, EDITED) == "pod-a2"
    agent.apply(broken=[])
    agent.log.clear()


def test_file_that_breaks_keeps_its_objects(world: World, agent: Agent) -> None:
    """A file that was good and no longer can be read keeps its last good objects in force."""
    agent.apply(edited=_one(world, 81, "pod-a1"))
    agent.log.clear()
    agent.folder.write_text("edited", "{")
    agent.wait_logged("edited")
    agent.settle()
    assert _name(world, EDITED) == "pod-a1"
    agent.apply(edited=_one(world, 81, "pod-a3"))
    assert _name(world, EDITED) == "pod-a3"


def test_endpoints_go_and_come_back(world: World, agent: Agent) -> None:
    """A Service that loses its last endpoint rejects, and answers again when it has one."""
    shape = service("svc-81", 81, both(80))
    agent.apply(edited=[shape, *backends(shape, [], 8080)])
    assert isinstance(world.client.connect(EDITED, 80), Rejected)
    assert isinstance(world.client.connect(EDITED, 80, "UDP"), Rejected)
    agent.apply(edited=_one(world, 81, "pod-b2"))
    assert _name(world, EDITED) == "pod-b2"
