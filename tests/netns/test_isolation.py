"""A Service whose rules are refused is served as it was before, and every other one as it should be: by packets."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from netns import addresses as plan
from netns.addresses import FAMILIES
from netns.agent import CLUSTER_CIDR, Agent
from netns.manifests import Manifest, backends, both, service
from netns.probe import Answer
from netns.world import Pod, World
from nodeproxy.ruleset.render import TEMPLATES

PORT = 80
SPOILS = {
    "unknown statement": "no such words",
    "missing chain": "goto nowhere",
    "statement for another hook": "masquerade",
}


@pytest.fixture
def world() -> Iterator[World]:
    with World(nodes=2, pods=3) as world:
        world.serve_pods(8080)
        yield world


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the templates."""
    return Path(shutil.copytree(TEMPLATES, tmp_path / "templates"))


def spoil(folder: Path, line: str, condition: str) -> None:
    """Have a line in the rules of the Services that a condition is true for."""
    balancing = folder / "balancing.nft.j2"
    text = f"{(TEMPLATES / 'balancing.nft.j2').read_text()}\n{{%- if {condition} %}}\n{line}\n{{%- endif %}}\n"
    new = balancing.with_suffix(".new")
    new.write_text(text)
    new.rename(balancing)


def shop(name: str, number: int, *pods: Pod) -> list[Manifest]:
    shape = service(name, number, both(PORT))
    return [shape, *backends(shape, pods, 8080)]


def answering(world: World, number: int, family: int) -> set[str]:
    """The pods that answer at a Service, or what a client meets instead."""
    address = plan.host(plan.SERVICES, number).of(4 if family == 4 else 6)
    outcomes = world.client.connect_times(60, address, PORT)  # of three pods, none is left out by chance
    return {outcome.name if isinstance(outcome, Answer) else repr(outcome) for outcome in outcomes}


@pytest.mark.parametrize("chains", ["WhenAffinity", "Always"])
@pytest.mark.parametrize("way", SPOILS)
def test_refused_change_leaves_the_service_to_its_old_pods_through_changes_and_restarts(
    world: World, folder: Path, way: str, chains: str
) -> None:
    """Until a change is taken; the others follow theirs all the time, and the log names who is refused and why."""
    a1, a2, a3 = (world.pod(f"pod-a{number}") for number in (1, 2, 3))
    spoil(folder, SPOILS[way], "'/bad/' in chain.name and (chain.targets or chain.chains) | length == 2")
    flags = [CLUSTER_CIDR, f"--templates={folder}", f"--endpoint-chains={chains}"]
    with Agent(world.node("node-a"), flags) as agent:
        agent.apply(bad=shop("bad", 81, a1), good=shop("good", 82, a1))
        for family in FAMILIES:
            assert answering(world, 81, family) == {"pod-a1"}
        agent.apply(bad=shop("bad", 81, a2, a3), good=shop("good", 82, a2))
        agent.wait_logged("service port refused", "test/bad:p80", "IPv4")
        agent.wait_logged("service port refused", "test/bad:p80", "IPv6")
        for family in FAMILIES:
            assert answering(world, 81, family) == {"pod-a1"}, "as before"
            assert answering(world, 82, family) == {"pod-a2"}
        assert agent.logged("service port refused", "test/good") == []
        agent.kill()
        agent.start()
        agent.apply(good=shop("good", 82, a3))
        for family in FAMILIES:
            assert answering(world, 81, family) == {"pod-a1"}, "after a restart as well"
            assert answering(world, 82, family) == {"pod-a3"}
        agent.apply(bad=shop("bad", 81, a1, a2, a3))
        for family in FAMILIES:
            assert answering(world, 81, family) == {"pod-a1", "pod-a2", "pod-a3"}
        agent.wait_logged("service port no longer refused", "test/bad:p80", "IPv6")


def test_service_that_is_refused_in_one_family_is_served_in_the_other(world: World, folder: Path) -> None:
    pod = world.pod("pod-a1")
    spoil(folder, "goto nowhere", "ip == 'ip' and '/bad/' in chain.name")
    with Agent(world.node("node-a"), [CLUSTER_CIDR, f"--templates={folder}"]) as agent:
        agent.apply(bad=shop("bad", 81, pod), good=shop("good", 82, pod))
        agent.wait_logged("service port refused", "test/bad:p80", "IPv4")
        assert answering(world, 81, 6) == {"pod-a1"}
        assert "pod-a1" not in answering(world, 81, 4)
        for family in FAMILIES:
            assert answering(world, 82, family) == {"pod-a1"}
        assert agent.logged("service port refused", "IPv6") == []


def test_new_service_that_is_refused_is_served_once_the_template_is_mended(world: World, folder: Path) -> None:
    """At the next restart, or full sync."""
    pod = world.pod("pod-b1")
    spoil(folder, "no such words", "'/bad/' in chain.name")
    with Agent(world.node("node-a"), [CLUSTER_CIDR, f"--templates={folder}"]) as agent:
        agent.apply(bad=shop("bad", 81, pod), good=shop("good", 82, pod))
        agent.wait_logged("service port refused", "test/bad:p80")
        assert "pod-b1" not in answering(world, 81, 4)
        assert answering(world, 82, 4) == {"pod-b1"}
        spoil(folder, "", "false")
        assert agent.stop() == 0
        agent.start()
        agent.settle()
        for family in FAMILIES:
            assert answering(world, 81, family) == {"pod-b1"}
