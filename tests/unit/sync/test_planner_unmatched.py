"""The planner notes service ports that have no endpoints because the slices have them for other ports."""

from typing import Any

import pytest

from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Change
from nodeproxy.model.service import ServicePortName

from .planning import Planning
from .support import endpoints, gone, service

HTTP = ServicePortName("ns", "web", "http", "TCP")


def named_port(**more: Any) -> Change:
    return service("web", ports=[{"name": "http", "port": 80, **more}])


def test_port_without_endpoints_though_slices_have_some_is_noted_with_what_those_are_for() -> None:
    """By name and by protocol: both have to be the Service's own."""
    planning = Planning(
        named_port(),
        endpoints("web", [1], name="s", port_name="web"),
        endpoints("web", [1], name="t", port_name="http", protocol="UDP"),
    )
    assert {name: sorted(others) for name, others in planning.planner.unmatched.items()} == {
        HTTP: ["http UDP", "web TCP"]
    }


@pytest.mark.parametrize(
    "slices",
    [
        [],
        [endpoints("web", [], port_name="web")],
        [endpoints("web", [1], port_name="http")],
        [endpoints("web", [1], port_name="http", name="s"), endpoints("web", [2], port_name="web", name="t")],
        [endpoints("web", [1], port_name="web", family=Family.IPV6)],
        [endpoints("other", [1], port_name="web")],
    ],
    ids=["no slice", "no endpoint", "its own", "its own and others", "other family", "other Service"],
)
def test_port_is_not_noted_where_no_endpoint_is_for_another_one_instead(slices: list[Change]) -> None:
    assert Planning(named_port(), *slices).planner.unmatched == {}


@pytest.mark.parametrize(
    "remedy",
    [
        [endpoints("web", [1], port_name="http")],
        [service("web", ports=[{"name": "web", "port": 80}])],
        [gone("EndpointSlice", "web-1")],
        [gone("Service", "web")],
        [service("web", clusterIP="None", ports=[{"name": "http", "port": 80}])],
    ],
    ids=["slice put right", "port renamed", "slice deleted", "Service deleted", "headless"],
)
def test_port_is_noted_until_it_is_put_right_or_gone_and_again_when_it_comes_back(
    remedy: list[Change],
) -> None:
    wrong = [named_port(), endpoints("web", [1], port_name="web")]
    planning = Planning(*wrong)
    assert planning.planner.unmatched == {HTTP: ("web TCP",)}
    planning.update(*remedy)
    assert planning.planner.unmatched == {}
    planning.update(*wrong)
    assert planning.planner.unmatched == {HTTP: ("web TCP",)}


def test_port_without_a_name_is_called_so_and_the_order_of_slices_does_not_matter() -> None:
    """Else a slice that is merely written again would be a new line in the log."""
    slices = [endpoints("web", [1], name="s"), endpoints("web", [1], name="t", port_name="admin")]
    notes = [Planning(named_port(), *order).planner.unmatched for order in (slices, slices[::-1])]
    assert notes == [{HTTP: ("admin TCP", "the unnamed port TCP")}] * 2
