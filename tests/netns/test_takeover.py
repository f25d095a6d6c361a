"""A table that kube-proxy left becomes ours in one step, and nobody who goes through it notices."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from layouts.services import hashed
from netns import addresses as plan
from netns.addresses import FAMILIES, Pair
from netns.agent import TABLE, Agent
from netns.flips_model import Served
from netns.manifests import Manifest, backends, port, service
from netns.namespaces import CommandError
from netns.probe import Answer, Flow, probe
from netns.recorded import CLIENTS, RELEASES, TARGET, Release, clear, recorded_objects, recording
from netns.takeover import tables
from netns.takeover_events import Event, Events
from netns.takeover_rows import ALL, ROWS, STICKY
from netns.takeover_traffic import Row, SteadyClients, expect_fates
from netns.world import World
from nodeproxy.kube.addresses import Family
from unit.sync.support import view

NODE = plan.node_address(0)
NFT_FAMILIES = ("ip", "ip6")


@pytest.fixture
def world() -> Iterator[World]:
    with World(nodes=2, pods=3) as world:
        world.serve_pods(TARGET)
        yield world


def _agent(world: World) -> Agent:
    """An agent for node-a with the objects of the recordings."""
    agent = Agent(world.node("node-a"))
    agent.folder.write("cluster", recorded_objects())
    return agent


def _expect_one_transaction(written: list[list[Event]], chains: Iterable[str]) -> None:
    """Of each family, the first transaction removes the other table and has all chains of Services; later ones none."""
    for family in NFT_FAMILIES:
        ours = [[event for event in events if (event.family, event.table) == (family, TABLE)] for events in written]
        first, *later = [events for events in ours if events]
        assert Event("delete table", family, TABLE, "") in first
        assert Event("add table", family, TABLE, "") in first
        assert {event.name for event in first if event.what == "add chain"} >= set(chains)
        assert {event.name for event in first if event.what == "add rule"} >= set(chains)
        assert [event for events in later for event in events if event.name in set(chains)] == []
        assert [event for events in later for event in events if event.what.endswith("table")] == []
        # Nothing came later but, at most, the marker that the agent's settling waits for.
        elements = [event.name for events in later for event in events if event.what.endswith("element")]
        assert sorted(elements) in ([], ["cluster-ips", "no-endpoint-services"])
        assert {event.name for event in first if event.what == "add element"} >= {"cluster-ips", "service-ips"}


@pytest.mark.parametrize("release", RELEASES)
def test_nobody_notices(world: World, release: Release) -> None:
    """New connections and exchanges never fail, old ones go on, clients with affinity stay, who is rejected stays so.

    All of a family happens in one transaction, and nothing of the other table is left.
    """
    agent = _agent(world)
    recording(release).load(agent.node.namespace)
    theirs = set(agent.chains(4))
    with Events(agent.node.namespace) as events, SteadyClients(world, ROWS | STICKY) as clients:
        clients.traffic.wait_round()
        with agent:
            clients.traffic.wait_round()
            time.sleep(2.2)  # what went out of use, if anything had, would be removed by now
            ours = set(agent.chains(4))
        clients.traffic.wait_round()
    # Linux (6.18) runs the rules of a chain that is deleted until the chain is unhooked, some microseconds after the
    # transaction holds, but its maps are empty by then. 1.31's checks come before ours: no entry that says drop, so
    # what goes to a ClusterIP is rejected. Those of 1.37 are where ours are, and there the new chain comes first.
    clients.expect_nothing_happened(rejects_for_drops=release == "1.31")
    served = ("shared", "single", "sticky", "balanced", "outside", "closed")
    _expect_one_transaction(events.transactions(), [f"service-{hashed(f'test/{name}/tcp/p80')}" for name in served])
    if release == "1.31":
        gone = {"filter-prerouting", "filter-output-post-dnat", "mark-for-masquerade"}
        assert theirs & gone == gone
        assert ours & gone == set()
    assert len(agent.logged("took_over=")) == len(FAMILIES)


@pytest.mark.parametrize("release", RELEASES)
def test_clients_that_were_remembered_stay_with_their_endpoints(clean_world: World, release: Release) -> None:
    """Those that kube-proxy knew when it wrote its table, over both protocols and families: before and after."""
    world = clean_world
    agent = _agent(world)
    recording(release).load(agent.node.namespace)
    remembered = list(_remembered(world, release))
    assert len(remembered) == 2 * CLIENTS * 2 * len(FAMILIES)
    assert {end for _, end in remembered} == ALL, "each endpoint has clients"
    assert _answers(remembered) == [end for _, end in remembered]
    with agent:
        assert len(agent.logged("took_over=")) == len(FAMILIES)
        assert _answers(remembered) == [end for _, end in remembered]


def _answers(remembered: Iterable[tuple[Flow, str]]) -> list[object]:
    outcomes = probe([flow for flow, _ in remembered], 5.0)
    return [outcome.name if isinstance(outcome, Answer) else outcome for outcome in outcomes]


def _remembered(world: World, release: Release) -> Iterator[tuple[Flow, str]]:
    """What the clients in the recorded tables would try next, and who answered them before."""
    pods = {address.replace(":", "."): name for name, pod in world.pods.items() for address in pod.addresses}
    services = {"sticky": 93, "ranges": 45}
    for family, text in zip(FAMILIES, recording(release).tables, strict=True):
        pattern = r"set affinity-\w+-test/(sticky|ranges)/(tcp|udp)/\S+__(\S+)/8080 \{(.*?)\n\t\}"
        for name, protocol, end, body in re.findall(pattern, text, re.DOTALL):
            for client in re.findall(r"(\S+) expires", body):
                to = plan.host(plan.SERVICES, services[name]).of(family)
                protocol_ = "TCP" if protocol == "tcp" else "UDP"
                yield Flow(world.client.namespace, to, 80, protocol_, client), pods[end]


@pytest.mark.parametrize("release", RELEASES)
def test_nothing_of_the_other_table_is_left(clean_world: World, release: Release) -> None:
    """The table taken over is the one that a start on a bare node makes, but for the clients it remembers."""
    agent = _agent(clean_world)
    recording(release).load(agent.node.namespace)
    with agent:
        taken_over = _views(agent)
        agent.stop()
        agent.command("cleanup")
        for family in FAMILIES:
            with pytest.raises(CommandError, match="No such file"):
                agent.listing(family, "chain", "services")
        agent.start()
        agent.settle()
        assert _views(agent) == taken_over
        agent.stop()


def _views(agent: Agent) -> dict[Family, dict[str, Any]]:
    """What both tables do; markers and clients left out."""
    time.sleep(2.5)  # what went out of use is removed by then
    with agent.node.namespace.enter():
        found = {family: view(family) for family in Family}
    for tables_ in found.values():
        for name, (declared, content) in tables_.items():
            keep = [] if name.startswith("set affinity-") else [one for one in content if not _is_marker(one)]
            tables_[name] = (declared, keep)
    return found


def _is_marker(content: object) -> bool:
    words = re.findall(r"[0-9a-f.:]+", str(content))
    return any(Agent.is_marker(word) for word in words)


@pytest.mark.parametrize("release", RELEASES)
def test_going_back_after_a_clean_up(clean_world: World, release: Release) -> None:
    """After ``nodeproxy cleanup`` the other table loads and serves as before; then it is taken over again."""
    world = clean_world
    agent = _agent(world)
    for _ in range(2):
        recording(release).load(agent.node.namespace)
        expect_fates(world, ROWS)
        agent.start()
        agent.settle()
        expect_fates(world, ROWS)
        assert agent.stop() == 0
        agent.command("cleanup")
        assert agent.node.namespace.run("nft", "list", "tables") == ""
    assert len(agent.logged("took_over=")) == 2 * len(FAMILIES)
    agent.close()


def test_gap_between_two_tables_would_be_noticed(world: World) -> None:
    """Where one table goes before the other comes, the checks above fail: by the clients, and by what was written."""
    node = world.node("node-a")
    recording("1.37").load(node.namespace)
    texts = recording("1.37").tables
    chain = f"service-{hashed('test/shared/tcp/p80')}"
    with Events(node.namespace) as events, SteadyClients(world, ROWS) as clients:
        for family, text in zip(NFT_FAMILIES, texts, strict=True):
            node.namespace.nft(f"delete table {family} {TABLE}")
            clients.traffic.wait_round()
            node.namespace.nft(text)
    with pytest.raises(AssertionError, match="to ClusterIP"):
        clients.expect_nothing_happened()
    with pytest.raises(AssertionError):
        _expect_one_transaction(events.transactions(), [chain])


def _in_first_user_namespace() -> bool:
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


# In a user namespace a transaction has to fit into the socket's buffer; nft could not load that table either.
COUNT = 5000 if _in_first_user_namespace() else 50


def _many(world: World) -> list[Manifest]:
    """Services over the whole range, each with a port and two endpoints, in both families."""
    manifests = []
    hosts = [world.pod("pod-a1"), world.pod("pod-b1")]
    for number in range(COUNT):
        cluster_ips = list(_many_ip(number))
        shape = service(f"many-{number}", 1, [port(80)], clusterIP=cluster_ips[0], clusterIPs=cluster_ips)
        manifests += [shape, *backends(shape, hosts, TARGET)]
    return manifests


def _many_ip(number: int) -> Pair:
    high, low = divmod(number, 250)
    return Pair(f"172.30.{high + 1}.{low + 1}", f"fd00:172:30::{0x1000 + number:x}")


def test_nobody_notices_among_five_thousand_services(world: World) -> None:
    """The same where the table holds 5,000 Services, seen by those who use the first, the last and some between."""
    used = (0, COUNT // 5, COUNT // 2, COUNT - 9, COUNT - 1)
    rows = {
        f"{who} to number {number}": Row(
            who, _many_ip(number), 80, Served(frozenset({"pod-a1", "pod-b1"}), masked=who != "pod-a3")
        )
        for number in used
        for who in ("pod-a3", "node-a", "client")
    }
    manifests = _many(world)
    agent = Agent(world.node("node-a"))
    agent.folder.write("services", manifests)
    for text in tables(manifests, agent.node, "1.37"):
        agent.node.namespace.run("nft", "-f", "-", text=text, timeout=100)
    with Events(agent.node.namespace) as events, SteadyClients(world, rows, protocols=["TCP"]) as clients:
        clients.traffic.wait_round()
        try:
            agent.start()
            agent.settle(timeout=60)
            clients.traffic.wait_round()
        finally:
            agent.close()
        clients.traffic.wait_round()
    clients.expect_nothing_happened()
    _expect_one_transaction(
        events.transactions(), [f"service-{hashed(f'test/many-{number}/tcp/p80')}" for number in range(COUNT)]
    )
    assert len(agent.logged("took_over=")) == len(FAMILIES)


def _half(text: str) -> str:
    """Every other set, map and hook of a table; maps without elements, hooks without rules, no Service."""
    bare = re.sub(r"\t\telements = \{.*?\}\n", "", text, flags=re.DOTALL)
    bare = re.sub(r"\t\t.*\bjump .*\n", "", bare)
    blocks = re.findall(r"^\t(?:set|map|chain) [^/]*? \{$.*?^\t\}\n", bare, re.DOTALL | re.MULTILINE)
    kept = [block for block in blocks if not block.startswith("\tchain") or " hook " in block]
    assert len(kept) > 10
    return f"{text.splitlines()[0]}\n{''.join(kept[::2])}}}\n"


def _changed(text: str, *changes: tuple[str, str]) -> str:
    """Text with something in place of something that is in it."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def _with(family: str, *lines: str) -> str:
    return "\n".join(f"add {line.format(table=f'{family} {TABLE}')}" for line in lines)


FOREIGN: dict[str, Callable[[str, str], str]] = {
    "other priorities": lambda text, _: _changed(
        text, ("priority dstnat;", "priority -99;"), ("priority filter;", "priority -5;")
    ),
    "other hooks": lambda text, _: _changed(text, ("hook prerouting priority dstnat - 10;", "hook input priority 0;")),
    "half a table": lambda text, _: _half(text),
    "asleep": lambda text, family: f"{text}\n" + _with(family, "table {table} {{ flags dormant ; }}"),
    "other types of maps": lambda _, family: _with(
        family,
        "table {table}",
        "map {table} service-ips {{ type ipv4_addr : verdict ; }}",
        "map {table} cluster-ips {{ type ipv4_addr : mark ; }}",
        "set {table} service-nodeports {{ type inet_service ; flags interval ; }}",
        "element {table} service-nodeports {{ 1-65535 }}",
    ),
    "chains of other programs": lambda text, family: (
        f"{text}\n"
        + _with(
            family,
            "chain {table} mine {{ type filter hook forward priority 5 ; policy drop ; }}",
            "counter {table} counted",
            'rule {table} mine counter name "counted"',
            "chain {table} jumped",
            "rule {table} services jump jumped",
            "set {table} affinity-mine {{ type inet_service ; }}",
        )
    ),
    "a chain of our name that is a hook": lambda _, family: _with(
        family,
        "table {table}",
        "chain {table} services {{ type filter hook forward priority 0 ; policy drop ; }}",
        "rule {table} services counter drop",
    ),
}


@pytest.fixture(scope="module")
def shared_world() -> Iterator[World]:
    with World(nodes=2, pods=3) as world:
        world.serve_pods(TARGET)
        yield world


@pytest.fixture
def clean_world(shared_world: World) -> Iterator[World]:
    """A world without tables, and again afterwards."""
    yield shared_world
    clear(shared_world.node("node-a").namespace)


@pytest.mark.parametrize("what", FOREIGN)
def test_foreign_tables_give_way(clean_world: World, what: str) -> None:
    """Whatever a table of our name holds, one start makes it ours: it serves, rejects and drops as it should."""
    world = clean_world
    agent = _agent(world)
    for family, text in zip(NFT_FAMILIES, recording("1.37").tables, strict=True):
        agent.node.namespace.nft(FOREIGN[what](text, family))
    with agent:
        expect_fates(world, ROWS)
        for family in FAMILIES:
            assert {"mine", "jumped"} & set(agent.chains(family)) == set()
        table = agent.node.namespace.run("nft", "list", "ruleset")
        assert "dormant" not in table
        assert "counted" not in table
        assert "affinity-mine" not in table


def test_own_table_that_was_put_to_sleep_is_woken_by_a_start(clean_world: World) -> None:
    """``flags dormant`` on a table that is right otherwise: a restart serves again."""
    world = clean_world
    with _agent(world) as agent:
        agent.stop()
        for family in NFT_FAMILIES:
            agent.node.namespace.nft(_with(family, "table {table} {{ flags dormant ; }}"))
        assert not isinstance(world.client.connect(plan.host(plan.SERVICES, 91).v4, 80), Answer)
        agent.start()
        agent.settle()
        expect_fates(world, ROWS)
