"""The SCTP client and servers of the tests tell every fate from every other, without the program under test."""

from collections.abc import Iterator

import pytest

from netns.addresses import FAMILIES, Family
from netns.matrix.sctp import SctpServers, crc32c, probe_sctp
from netns.probe import Answer, Dropped, Flow, Outcome, Rejected, Unreachable
from netns.world import World

PORT = 7777
RULES = """
table inet fates {
    chain forward {
        type filter hook forward priority 0
        sctp dport 1 drop
        sctp dport 2 reject
        sctp dport 3 reject with icmpx host-unreachable
    }
    chain output {
        type filter hook output priority 0
        sctp dport 1 drop
        sctp dport 2 reject
    }
}
table ip nat {
    chain before {
        type nat hook prerouting priority -100
        sctp dport 4 dnat to 10.180.1.11:7777
    }
    chain after {
        type nat hook postrouting priority 100
        sctp dport 7777 ip daddr 10.180.1.11 masquerade
    }
}
table ip6 nat {
    chain before {
        type nat hook prerouting priority -100
        sctp dport 4 dnat to [fd00:10:180:1::11]:7777
    }
    chain after {
        type nat hook postrouting priority 100
        sctp dport 7777 ip6 daddr fd00:10:180:1::11 masquerade
    }
}
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(nodes=1, pods=2) as world:
        servers = SctpServers()
        try:
            for pod in world.pods.values():
                servers.serve(pod.namespace, pod.name, pod.addresses, PORT)
            world.node("node-a").namespace.nft(RULES)
            yield world
        finally:
            servers.close()


def _outcome(world: World, family: Family, port: int, *, from_node: bool = False, timeout: float = 2.0) -> Outcome:
    client = world.node("node-a") if from_node else world.client
    return probe_sctp([Flow(client.namespace, world.pod("pod-a1").address(family), port)], timeout)[0]


def test_checksum_is_that_of_the_standard() -> None:
    """The check value that every catalogue of CRCs gives for CRC-32C."""
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("family", FAMILIES)
def test_server_answers_with_its_name_and_the_clients_address(world: World, family: Family) -> None:
    """Untranslated, both sides agree on the client's address and port."""
    outcome = _outcome(world, family, PORT)
    assert isinstance(outcome, Answer)
    assert (outcome.name, outcome.source, outcome.masqueraded) == ("pod-a1", world.client.address(family), False)


@pytest.mark.parametrize("family", FAMILIES)
def test_translated_packets_arrive_and_their_answers_come_back(world: World, family: Family) -> None:
    """The kernel rewrites addresses, ports and checksum of both directions."""
    outcome = _outcome(world, family, 4)
    assert isinstance(outcome, Answer)
    assert outcome.name == "pod-a2"
    assert outcome.source == world.node("node-a").gateway.of(family)
    assert outcome.client == world.client.address(family)


@pytest.mark.parametrize("from_node", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_drop_and_reject_are_told_apart(world: World, family: Family, from_node: bool) -> None:
    """Whether a packet is forwarded or leaves the very node whose rules stop it."""
    assert _outcome(world, family, 1, from_node=from_node, timeout=0.3) == Dropped()
    outcome = _outcome(world, family, 2, from_node=from_node)
    assert isinstance(outcome, Rejected)
    assert from_node or outcome.by == world.node("node-a").address(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_other_errors_are_no_rejection(world: World, family: Family) -> None:
    """ "Host unreachable" is not what a Service's reject says; nor is "no route"."""
    assert _outcome(world, family, 3) == Unreachable()
    nowhere = "198.18.0.1" if family == 4 else "2001:db8:dead::1"
    assert probe_sctp([Flow(world.node("node-a").namespace, nowhere, PORT)], 2.0) == [Unreachable()]


@pytest.mark.parametrize("family", FAMILIES)
def test_many_at_once_keep_their_own_fates(world: World, family: Family) -> None:
    """Packets under way together are not mixed up."""
    namespace, address = world.client.namespace, world.pod("pod-a1").address(family)
    kinds = [(PORT, Answer), (2, Rejected), (4, Answer), (3, Unreachable)]
    flows = [Flow(namespace, address, port) for _ in range(50) for port, _ in kinds]
    outcomes = probe_sctp(flows, 3.0)
    assert [type(outcome) for outcome in outcomes] == [kind for _ in range(50) for _, kind in kinds]
    names = [outcome.name for outcome in outcomes if isinstance(outcome, Answer)]
    assert names == ["pod-a1", "pod-a2"] * 50
