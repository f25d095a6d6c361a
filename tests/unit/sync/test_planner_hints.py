"""The planner notes service ports whose endpoints' hints are not used, and why, until they are right or gone."""

import pytest

from nodeproxy.kube.source import Change
from nodeproxy.model.service import ServicePortName

from .planning import Planning
from .support import Table, endpoints, gone, node, service

WEB = ServicePortName("ns", "web", "", "TCP")
REASON = "some ready endpoints have no zone hint"
HINTED = endpoints("web", [1, 2], zones=["zone-a"], name="s")
UNHINTED = endpoints("web", [3], name="t")


def planning(*changes: Change) -> Planning:
    made = Planning(service("web"), service("api", 11), endpoints("api", [9]), *changes)
    made.move(node(zone="zone-a"))
    return made


def test_one_endpoint_that_lacks_hints_is_noted_with_the_reason() -> None:
    assert planning(HINTED, UNHINTED).planner.ignored_hints == {WEB: REASON}


@pytest.mark.parametrize("slices", [[], [HINTED], [UNHINTED]], ids=["no endpoint", "all hinted", "none hinted"])
def test_nothing_is_noted_where_hints_are_used_or_there_are_none(slices: list[Change]) -> None:
    assert planning(*slices).planner.ignored_hints == {}


@pytest.mark.parametrize(
    "remedy",
    [
        [endpoints("web", [3], zones=["zone-a"], name="t")],
        [gone("EndpointSlice", "t")],
        [gone("EndpointSlice", "s")],
        [gone("Service", "web")],
        [service("web", clusterIP="None")],
    ],
    ids=["hints for all", "slice deleted", "hints gone", "Service deleted", "headless"],
)
def test_note_goes_when_it_is_put_right_and_comes_back(remedy: list[Change]) -> None:
    made = planning(HINTED, UNHINTED)
    made.update(*remedy)
    assert made.planner.ignored_hints == {}
    made.update(service("web"), HINTED, UNHINTED)
    assert made.planner.ignored_hints == {WEB: REASON}


def test_zone_that_the_node_lacks_is_noted_until_it_has_one() -> None:
    made = planning(HINTED)
    made.move(node())
    assert "zone is not known" in made.planner.ignored_hints[WEB]
    made.move(node(zone="zone-a"))
    assert made.planner.ignored_hints == {}


def test_journal_is_told() -> None:
    table = Table(node(zone="zone-a"), service("web"), HINTED, UNHINTED)
    assert table.journal.last_ignored_hints == {WEB: REASON}
    table.move(endpoints("web", [3], zones=["zone-a"], name="t"))
    assert table.journal.last_ignored_hints == {}
