"""What is measured of two proxies beside each other: changes, lags, and the tables made of them."""

import os
import threading
from typing import Any

import pytest

from bench import cluster, plan, rival_checks, rival_report
from bench.checks import judge
from bench.errors import BenchError
from bench.plan import Beside
from bench.samples import Samples
from bench.turns import Observation, lag, latest
from bench.writers import Change, Changes

SERVICES = 20


def test_what_is_created_leaves_to_the_server_what_the_server_decides() -> None:
    service = cluster.created(cluster.service(3))
    assert service["spec"]["clusterIP"] == cluster.cluster_ip(3)
    assert "selector" not in service["spec"], "a controller would make slices of its own"
    slices = cluster.created(cluster.endpoint_slice(3))
    assert slices["metadata"]["labels"]["kubernetes.io/service-name"] == service["metadata"]["name"]
    assert "endpointslice.kubernetes.io/managed-by" not in slices["metadata"]["labels"]
    for item in (service, slices):
        assert not {"uid", "resourceVersion", "creationTimestamp"} & item["metadata"].keys()
        assert "status" not in item


def test_namespaces_are_created_once_in_however_many_steps() -> None:
    in_steps = [*cluster.namespaces(0, 70), *cluster.namespaces(70, 230)]
    assert in_steps == list(cluster.namespaces(0, 230))
    wanted = {item["metadata"]["namespace"] for item in cluster.creatable(0, 230)}
    assert {item["metadata"]["name"] for item in in_steps} == wanted


def test_each_change_brings_an_address_that_was_never_there() -> None:
    taken: list[dict[str, Any]] = []
    changes = Changes(SERVICES, taken.append)
    made = [changes.make() for _ in range(3 * SERVICES)]
    assert len({change.address for change in made} - cluster_addresses()) == 3 * SERVICES
    assert {change.service for change in made} == set(range(SERVICES))
    last = [taken[-1]["endpoints"][index]["addresses"][0] for index in range(10)]
    assert last == cluster.pods(made[-1].service, version=made[-1].version)
    assert all(change.sent <= change.answered for change in made)


def test_what_should_be_in_force_follows_the_changes() -> None:
    changes = Changes(SERVICES, lambda _: None)
    assert changes.endpoints().keys() == cluster_addresses()
    change = changes.make()
    assert changes.endpoints().keys() - cluster_addresses() == {change.address}
    assert len(changes.endpoints()) == SERVICES * 10


def test_writers_have_services_of_their_own_and_write_at_the_same_time() -> None:
    together = threading.Barrier(4)
    writers: dict[str, set[int]] = {}
    known: set[int] = set()

    def replace(item: dict[str, Any]) -> None:
        writer = threading.get_ident()
        if writer not in known:
            known.add(writer)
            together.wait(20)  # breaks unless all four are here at the same time
        writers.setdefault(item["metadata"]["name"], set()).add(writer)

    Changes(SERVICES, replace).burst(4, 0.3, lambda _: None)
    assert len(known) == 4
    assert len(writers) == SERVICES
    assert all(len(found) == 1 for found in writers.values())


def test_a_burst_gives_all_changes_and_lets_others_look_meanwhile() -> None:
    marks: list[float] = []
    made = Changes(SERVICES, lambda _: None).burst(2, 0.2, marks.append)
    assert len({change.version for change in made}) == len(made) > SERVICES
    assert marks[-1] >= 0.2


def test_a_change_that_is_not_taken_ends_a_burst() -> None:
    def replace(item: dict[str, Any]) -> None:
        msg = "no quorum"
        raise OSError(msg)

    with pytest.raises(BenchError, match="no quorum"):
        Changes(SERVICES, replace).burst(2, 30, lambda _: None)


def test_a_replay_keeps_its_rate() -> None:
    made = Changes(SERVICES, lambda _: None).replay(200, 0.5)
    assert len(made) in range(90, 101)


def test_of_several_changes_of_a_service_the_last_one_counts() -> None:
    made = [Change(1, 5, 0.0, 3.0), Change(1, 9, 0.0, 4.0), Change(2, 7, 0.0, 1.0), Change(1, 6, 0.0, 2.0)]
    assert {change.version for change in latest(made)} == {9, 7}


def test_the_lag_is_from_the_answer_to_the_kernel_and_overtaken_changes_have_none() -> None:
    made = [Change(1, 1, 9.0, 10.0), Change(1, 2, 10.0, 11.0), Change(2, 3, 11.0, 12.0)]
    found = lag(made, {made[1].address: 11.5, made[2].address: 11.9}, 2.0)
    assert found["burst overtaken"] == 1
    assert found["burst changes a second"] == 1.5
    assert found["burst lag p100 s"] == 0.5
    assert found["burst lag p50 s"] == 0.0, "in force before the API server had answered"


def test_a_lag_that_grows_shows() -> None:
    made = [Change(number, number + 1, 0.0, float(number)) for number in range(9)]
    found = lag(made, {change.address: change.answered * 2 for change in reversed(made)}, 9.0)
    assert (found["burst lag early s"], found["burst lag late s"]) == (1.0, 7.0)


def test_growth_compares_the_ends_of_a_burst() -> None:
    observation = Observation(os.getpid())
    observation._marks = [(1.0, 100), (2.0, 130), (5.0, 500), (9.0, 150), (10.0, 140)]
    assert observation.figures()["burst growth KiB"] == 20


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ("cluster", {"cluster": {"sizes": [10_000, 16_900], "starts": 2, "turn": {"updates": 30, "idle": 125}}}),
        ("burst", {"burst": {"sizes": [10_000], "starts": 1, "burst_at": 10_000, "turn": {"burst": 30}}}),
        ("loopback", {"loopback": {"services": 30_000}}),
        ("replay", {"replay": {"services": 10_000, "rate": 1_000, "seconds": 30}}),
    ],
)
def test_topics_choose_what_is_measured_beside(topics: str, expected: dict[str, Any]) -> None:
    found = {task.topic: task.arguments for task in plan.tasks(plan.SIZES, topics.split(","))}
    rivals = [argument.pop("rivals") for argument in found.values()]
    assert found == expected
    assert rivals == [["nodeproxy"] if topics == "loopback" else ["kube-proxy", "nodeproxy"]]


def test_kube_proxy_is_started_with_more_services_on_request_only() -> None:
    (task,) = plan.tasks((30_000,), ("loopback",), beside=Beside(theirs_up_to=30_000))
    assert task.arguments["rivals"] == ["kube-proxy", "nodeproxy"]
    (task,) = plan.tasks((16_900,), ("loopback",))
    assert task.arguments["rivals"] == ["kube-proxy", "nodeproxy"]


def test_a_burst_goes_with_the_rest_where_both_are_chosen() -> None:
    (task,) = plan.tasks((1_000,), ("cluster", "burst"), beside=Beside(alone=True, burst=5))
    assert task.arguments["sizes"] == [1_000]
    assert task.arguments["burst_at"] == 1_000
    assert task.arguments["turn"] == {"updates": 30, "idle": 125, "burst": 5}
    assert task.arguments["rivals"] == ["nodeproxy"]
    assert task.most == 1


def test_the_table_has_both_and_the_ratio() -> None:
    samples = Samples()
    samples.add(("cluster kube-proxy", 10_000), {"start s": [20.0, 18.0, 19.0], "children's peak KiB": [2048]})
    samples.add(("cluster nodeproxy", 10_000), {"start s": [5.0], "update s": [0.01, 0.02]})
    lines = [[cell.strip() for cell in line.split("|")] for line in rival_report.figures(samples)]
    assert lines[0] == ["On a real API server, 10,000 x 10", "kube-proxy", "nodeproxy", "kube-proxy / nodeproxy"]
    assert ["start to loaded, s", "19.0", "5.00", "3.80"] in lines
    assert ["children's, MB", "2.00", "-", ""] in lines
    assert ["one changed slice, request to kernel, p50, ms", "-", "10.0", ""] in lines
    assert not any("idle" in line[0] for line in lines), "what was not measured is no line"


def test_expectations_are_of_nodeproxy() -> None:
    samples = Samples()
    samples.add(("cluster kube-proxy", 10_000), {"start s": [60.0], "peak KiB": [900 * 1024]})
    samples.add(("cluster nodeproxy", 10_000), {"start s": [5.0], "peak KiB": [100, 161 * 1024], "update s": [0.03]})
    found = {verdict.what: verdict for verdict in judge(samples, "1.0.6")}
    assert found["from an API server, 10,000 x 10: start to loaded"].met
    assert not found["peak memory from an API server, 10,000 x 10"].met, "the worst start counts"
    assert found["one changed slice at 10,000, request to kernel, p50"].met
    newer = {verdict.what: verdict for verdict in judge(samples, "1.1.3")}
    assert not newer["one changed slice at 10,000, request to kernel, p50"].met
    assert {row.what for row in rival_checks.ROWS} <= found.keys()


def cluster_addresses() -> set[str]:
    return {address for number in range(SERVICES) for address in cluster.pods(number)}
