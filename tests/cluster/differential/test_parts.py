"""What the comparison rests on: the seeds hold everything, and fates differ only where chance does not explain it."""

import copy
from collections import Counter

import pytest

from cluster.differential.cells import ROUND, deal, every_cell, whole_rounds
from cluster.differential.fates import Fate, fate, same
from cluster.differential.generate import Made, cluster, every_trait
from cluster.differential.ground import NODE, ORIGINS
from cluster.differential.known import KNOWN, Difference, explanation
from cluster.differential.questions import Frontend, Question, questions
from cluster.differential.settings import SETTINGS, Settings
from netns import addresses as plan
from netns.manifests import Manifest
from netns.probe import Answer, Dropped, Outcome, Refused, Rejected, Unreachable


def question(**other: object) -> Question:
    fields: dict[str, object] = {
        "service": "differential/s0-1",
        "port_name": "p0",
        "origin": "a pod",
        "frontend": Frontend.CLUSTER_IP,
        "address": "10.96.0.7",
        "port": 80,
        "protocol": "TCP",
        "source": None,
        "sticky": False,
        "endpoints": 2,
    }
    return Question(**(fields | other))  # type: ignore[arg-type]


def answer(name: str, source: str = "10.180.1.13", *, port: int = 40000) -> Answer:
    return Answer(name, source, port, "10.180.1.13", 40000)


def test_round_of_seeds_holds_every_cell_once() -> None:
    """Ten seeds in a row have each type, policy and state, and all that may be drawn for a Service."""
    dealt = [cell for seed in range(ROUND, 2 * ROUND) for cell in deal(seed)]
    assert len(dealt) == len(every_cell())
    assert set(dealt) == set(every_cell())
    traits = {trait for seed in range(ROUND) for made in cluster(seed) for trait in made.traits}
    assert traits == every_trait()


def test_only_whole_rounds_hold_every_cell() -> None:
    """Ten seeds that straddle two rounds do not."""
    assert whole_rounds(range(10))
    assert whole_rounds(range(5, 25))
    assert not whole_rounds(range(5, 15))
    assert not whole_rounds(range(9))


def test_seed_is_always_the_same_and_seeds_differ() -> None:
    """What a seed showed can be looked at again."""
    assert cluster(3) == cluster(3)
    assert cluster(3) != cluster(13)


def test_names_and_addresses_of_a_seed_are_nobody_elses() -> None:
    """No two Services claim one address: which of them gets it is a matter of its own."""
    for seed in range(ROUND):
        made = cluster(seed)
        claimed = [address for one in made for address in one.service["spec"].get("externalIPs", [])]
        claimed += [entry["ip"] for one in made if one.status for entry in one.status["ingress"] if "ip" in entry]
        assert len(claimed) == len(set(claimed))
        names = [one["metadata"]["name"] for each in made for one in [each.service, *each.slices]]
        assert len(names) == len(set(names))


def granted(made: Made) -> Manifest:
    """A Service as an API server could have it: with ClusterIPs and NodePorts."""
    service: Manifest = copy.deepcopy(made.service)
    spec = service["spec"]
    if made.cell.kind.served:
        spec["clusterIPs"] = [*plan.host(plan.SERVICES, 7)]
    for entry in spec.get("ports", []):
        entry["nodePort"] = 30000 + entry["port"]
    return service | ({"status": {"loadBalancer": made.status}} if made.status else {})


def test_no_two_flows_of_a_port_share_a_client_with_affinity() -> None:
    """Whom one flow has bound to an endpoint, another one does not dial as: it would not choose any more."""
    for seed in range(ROUND):
        taken: Counter[tuple[str, str, str, str | None]] = Counter()
        for one in questions(seed, [(made, granted(made)) for made in cluster(seed)]):
            origin = ORIGINS[one.origin]
            if one.sticky and not one.lone:
                clients = {origin.alias(one.family, one.first_client + number) for number in range(one.tries)}
                assert len(clients) == one.tries
                taken.update((one.service, one.port_name, one.protocol, client) for client in clients)
        assert taken
        assert max(taken.values()) == 1


def test_flows_of_a_seed_are_many_and_each_different() -> None:
    """At least 200, from every origin, also where the API server hands out other addresses."""
    for seed in range(ROUND):
        asked = questions(seed, [(made, granted(made)) for made in cluster(seed)])
        assert len(asked) == len(set(asked)) > 200
        assert {one.origin for one in asked} == ORIGINS.keys()


def test_configurations_say_the_same_to_both() -> None:
    """Flags and configuration file hold the same values."""
    for settings in SETTINGS:
        flags = dict(flag.removeprefix("--").split("=", 1) for flag in settings.flags())
        file = settings.kube_proxy("kubeconfig", NODE)
        assert flags["detect-local-mode"] == file["detectLocalMode"]
        assert flags.get("cluster-cidr", "") == file["clusterCIDR"]
        assert flags.get("pod-bridge-interface", "") == file["detectLocal"]["bridgeInterface"]
        assert flags["nodeport-addresses"] == ",".join(file["nodePortAddresses"])
        assert flags["masquerade-all"] == str(file["nftables"]["masqueradeAll"]).lower()
        assert int(flags["masquerade-bit"]) == file["nftables"]["masqueradeBit"]


@pytest.mark.parametrize("endpoints", [2, 3, 6])
def test_tries_find_every_endpoint(endpoints: int) -> None:
    """The chance that one is missed is less than one in a million, and no more tries are made than that takes."""
    tries = question(endpoints=endpoints).tries
    assert endpoints * (1 - 1 / endpoints) ** tries <= 1e-6
    assert endpoints * (1 - 1 / endpoints) ** (tries - 1) > 1e-6


def test_fate_tells_whom_endpoints_saw() -> None:
    """Another address, another port of the same address, and nothing changed are three things."""
    seen = fate([[answer("x")], [answer("y", port=50000)], [answer("z", "10.180.1.1", port=50000)]])
    assert seen.reached == {("x", "itself"), ("y", "itself at another port"), ("z", "10.180.1.1")}
    assert seen != fate([[answer("x")], [answer("y")], [answer("z", "10.180.1.1")]])


def test_port_that_chance_changed_or_kept_is_no_difference() -> None:
    """What an endpoint saw most of the time counts."""
    assert fate([[answer("x", port=1)], [answer("x")], [answer("x")]]) == fate([[answer("x")]])
    assert fate([[answer("x", port=1)], [answer("x", port=2)], [answer("x")]]) == fate([[answer("x", port=3)]])


def test_ways_to_fail_are_told_apart() -> None:
    """Each is another fate, and so is who rejected."""
    ways: list[Outcome] = [Rejected("192.168.0.2"), Rejected("10.180.2.10"), Refused(), Unreachable(), Dropped()]
    assert len({fate([[way]]) for way in ways}) == len(ways)
    assert fate([[Dropped()], [answer("x")]]) not in {fate([[answer("x")]]), fate([[Dropped()]])}


def test_affinity_is_that_each_client_stays() -> None:
    """Clients may have different endpoints, but each has one."""
    assert fate([[answer("x")] * 2, [answer("y")] * 2]).loyal is True
    assert fate([[answer("x")] * 2, [answer("x"), answer("y")]]).loyal is False
    assert fate([[Dropped()] * 2]).loyal is None
    both, one = [[answer("x")] * 2, [answer("y")] * 2], [[answer("x"), answer("y")], [answer("y")] * 2]
    assert not same(question(sticky=True), fate(both), fate(one))


def test_endpoint_of_a_single_client_with_affinity_is_chance() -> None:
    """Which one it got does not matter; whom that one saw, whether it was kept and whether there was one does."""
    lone = question(sticky=True, origin="pod-a1")
    x, y = fate([[answer("x")] * 4]), fate([[answer("y")] * 4])
    assert same(lone, x, y)
    assert not same(question(), x, y)
    assert not same(lone, x, fate([[answer("x", "10.180.1.1")] * 4]))
    assert not same(lone, x, fate([[answer("x"), answer("y")] * 2]))
    assert not same(lone, x, fate([[Dropped()] * 4]))


def _difference(
    ours: Fate, frontend: Frontend = Frontend.VIP, settings: Settings = SETTINGS[0], **spec: object
) -> Difference:
    service: Manifest = {"metadata": {}, "spec": spec}
    return Difference(question(frontend=frontend), service, settings, fate([[answer("x")]]), ours)


def test_difference_on_purpose_explains_what_it_is_about_and_nothing_else() -> None:
    """Source ranges of the other family close a load balancer's address, and neither open nor close anything else."""
    closed, refused = fate([[Dropped()]]), fate([[Refused()]])
    other, own = ["2001:db8::/32"], ["203.0.113.0/24"]
    assert explanation(_difference(closed, loadBalancerSourceRanges=other)) is KNOWN[0]
    assert explanation(_difference(refused, loadBalancerSourceRanges=other)) is None
    assert explanation(_difference(closed, loadBalancerSourceRanges=own + other)) is None
    assert explanation(_difference(closed, Frontend.CLUSTER_IP, loadBalancerSourceRanges=other)) is None
    assert explanation(_difference(closed)) is None
    of_v6 = Settings(node_ports=("fd00::/8",))
    assert explanation(_difference(refused, Frontend.NODE_PORT, of_v6)) is KNOWN[2]
    assert explanation(_difference(refused, Frontend.NODE_PORT)) is None
