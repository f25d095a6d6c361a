"""``--templates`` runs with other rules; and wrong rules are noticed by packets."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from netns import addresses as plan
from netns.addresses import FAMILIES
from netns.agent import CLUSTER_CIDR, Agent
from netns.manifests import backends, both, service
from netns.probe import Answer, Dropped
from netns.world import World

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(nodes=1, pods=2) as world:
        world.serve_pods(8080)
        yield world


def _fates(world: World, templates: Path) -> list[object]:
    """What becomes of a connection from outside, per family, with rules from a copy of the templates."""
    shape = service("plain", 7, both(80))
    with Agent(world.node("node-a"), [CLUSTER_CIDR, f"--templates={templates}"]) as agent:
        agent.apply(services=[shape, *backends(shape, [world.pod("pod-a1")], 8080)])
        fates = [world.client.connect(plan.host(plan.SERVICES, 7).of(family), 80) for family in FAMILIES]
        agent.stop()
        agent.command("cleanup")
    return list(fates)


def test_changed_copy_is_what_runs(world: World, tmp_path: Path) -> None:
    """An unchanged copy serves; a copy that drops instead of choosing an endpoint does not."""
    copy = tmp_path / "templates"
    shutil.copytree(TEMPLATES, copy)
    assert all(isinstance(fate, Answer) for fate in _fates(world, copy))
    wrong = copy / "balancing.nft.j2"
    spoilt, count = re.subn(r"(meta l4proto \S+ \S+ \S+) dnat to .*", r"\1 drop", wrong.read_text())
    assert count == 1
    wrong.write_text(spoilt)
    assert _fates(world, copy) == [Dropped(), Dropped()]
