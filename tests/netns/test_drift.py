"""Traffic while others change, flush or fight over the rules."""

import threading
import time
from collections.abc import Iterator

import pytest

from netns import addresses as plan
from netns.addresses import FAMILIES, Pair
from netns.agent import CLUSTER_CIDR, Agent
from netns.manifests import Manifest, backends, both, service
from netns.probe import Answer, Flow, probe
from netns.world import Host, World

TARGET = 8080
WEB, STICKY = 71, 72
PAUSE = 1.5  # seconds; what follows within a second of a correction waits for that second to pass
CORRECTED = "foreign change corrected"


def cluster_ip(number: int) -> Pair:
    return plan.host(plan.SERVICES, number)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(nodes=2, pods=3) as world:
        world.serve_pods(TARGET)
        yield world


def manifests(world: World) -> list[Manifest]:
    pods = [world.pod(name) for name in ("pod-a2", "pod-b1")]
    web, sticky = service("web", WEB, both(80)), service("sticky", STICKY, both(80), affinity_seconds=600)
    return [web, sticky, *backends(web, pods, TARGET), *backends(sticky, pods, TARGET)]


@pytest.fixture(scope="module")
def agent(world: World) -> Iterator[Agent]:
    with Agent(world.node("node-a")) as agent:
        agent.apply(drift=manifests(world))
        yield agent


def answers(origin: Host, number: int, count: int = 6) -> list[str]:
    """Who answers new connections over both families; anything else fails the test."""
    flows = [Flow(origin.namespace, cluster_ip(number).of(family), 80) for family in FAMILIES for _ in range(count)]
    outcomes = probe(flows, 2.0)
    assert all(isinstance(outcome, Answer) for outcome in outcomes), outcomes
    return [outcome.name for outcome in outcomes if isinstance(outcome, Answer)]


def change(agent: Agent, text: str, families: int) -> float:
    """Have nft make a change on the node; the seconds until it was corrected."""
    time.sleep(PAUSE)
    before = len(agent.logged(CORRECTED))
    begun = time.monotonic()
    agent.node.namespace.nft(text)
    agent.wait_logged(CORRECTED, count=before + families, timeout=15)
    return time.monotonic() - begun


@pytest.mark.parametrize(
    ("text", "families"),
    [
        ("flush ruleset", 2),
        ("delete table ip kube-proxy", 1),
        ("add table ip kube-proxy { flags dormant; }; add table ip6 kube-proxy { flags dormant; }", 2),
        ("insert rule ip kube-proxy nat-prerouting accept; insert rule ip6 kube-proxy nat-prerouting accept", 2),
        ("add chain ip kube-proxy wall { type filter hook forward priority -1; policy drop; }", 1),
        ("flush map ip kube-proxy service-ips; flush map ip6 kube-proxy service-ips", 2),
    ],
)
def test_new_connections_work_again_once_a_foreign_change_is_corrected(
    world: World, agent: Agent, text: str, families: int
) -> None:
    seconds = change(agent, text, families)
    print(f"corrected {seconds:.3f} s after the change began")
    assert set(answers(world.pod("pod-a1"), WEB, 20)) == {"pod-a2", "pod-b1"}


def test_clients_with_affinity_stay_while_something_else_is_corrected(world: World, agent: Agent) -> None:
    first = answers(world.pod("pod-a1"), STICKY, 1)
    for text in (
        "flush chain ip kube-proxy services; flush chain ip6 kube-proxy services",
        "add chain ip kube-proxy other { type filter hook input priority 5; }",
    ):
        change(agent, text, text.count("kube-proxy"))
        assert answers(world.pod("pod-a1"), STICKY, 1) == first


def test_connections_do_not_notice_changes_that_need_no_correction(world: World, agent: Agent) -> None:
    stop = threading.Event()
    failures: list[object] = []
    made: list[int] = []

    def keep_connecting() -> None:
        while not stop.is_set():
            flows = [Flow(world.pod("pod-a1").namespace, cluster_ip(WEB).of(family), 80) for family in FAMILIES]
            for outcome in probe(flows, 5.0):
                made.append(1)
                if not isinstance(outcome, Answer):
                    failures.append(outcome)
            stop.wait(0.01)

    time.sleep(PAUSE)
    before = len(agent.logged(CORRECTED))
    client = threading.Thread(target=keep_connecting)
    client.start()
    try:
        for _ in range(20):
            agent.node.namespace.nft("add chain ip kube-proxy passing; delete chain ip kube-proxy passing")
            agent.node.namespace.nft("add table inet others; delete table inet others")
            time.sleep(0.1)
    finally:
        stop.set()
        client.join(20)
    assert failures == []
    assert len(made) > 20
    assert len(agent.logged(CORRECTED)) == before


def test_two_agents_on_one_node_do_not_keep_each_other_busy(world: World) -> None:
    """Two that want the same write nothing; two that want it otherwise do so less and less often, and say so."""
    with Agent(world.node("node-b")) as one:
        one.apply(drift=manifests(world))
        with Agent(world.node("node-b"), folder=one.folder) as two:
            two.wait_logged("started")
            time.sleep(2.0)
            assert one.logged(CORRECTED) == []
            assert two.logged(CORRECTED) == []
        with Agent(world.node("node-b"), flags=(CLUSTER_CIDR, "--masquerade-all"), folder=one.folder):
            one.wait_logged("another program keeps changing the table", timeout=40)
            seen = len(one.logged(CORRECTED))
            time.sleep(3.0)
            assert len(one.logged(CORRECTED)) <= seen + 4
