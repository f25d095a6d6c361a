"""Each row of the matrix, by packets."""

import pytest

from netns.matrix.cells import (
    BASE_ROWS,
    CHAIN_ROWS,
    DEFAULT,
    DETECTION_ROWS,
    HINT_ROWS,
    KIND_ROWS,
    NODE_PORT_ROWS,
    RANGE_ROWS,
    STRAY_ROWS,
    Row,
    cells_of,
)
from netns.matrix.lab import Lab

pytestmark = pytest.mark.timeout(600)  # the first test of a configuration asks for all of its cells


@pytest.mark.parametrize("row", BASE_ROWS, ids=str)
def test_policies_and_endpoints_decide(row: Row, lab: Lab) -> None:
    """Policy and endpoints decide who answers and what they see, over each protocol, for everybody."""
    assert lab.mismatches(row) == []


@pytest.mark.parametrize("row", CHAIN_ROWS, ids=str)
def test_endpoint_chains_change_no_fate(row: Row, lab: Lab) -> None:
    """With a chain for every endpoint all is as without."""
    assert lab.mismatches(row) == []


@pytest.mark.parametrize("row", KIND_ROWS, ids=str)
def test_types_of_services_differ_in_their_addresses_only(row: Row, lab: Lab) -> None:
    """External IPs of a ClusterIP Service, NodePorts and plain load balancers obey the policies all the same."""
    assert lab.mismatches(row) == []


@pytest.mark.parametrize("row", STRAY_ROWS, ids=str)
def test_what_no_service_has_is_kept_off_or_left_alone(row: Row, lab: Lab) -> None:
    """Other ports of ClusterIPs are rejected, ClusterIPs of nobody dropped; other addresses are not looked at."""
    assert lab.mismatches(row) == []


@pytest.mark.parametrize("row", HINT_ROWS, ids=str)
def test_hints_choose_among_ready_endpoints(row: Row, lab: Lab) -> None:
    """Hints for this node, else for its zone, narrow policy Cluster; policy Local does not look at them."""
    assert lab.mismatches(row) == []


@pytest.mark.parametrize("row", RANGE_ROWS, ids=str)
def test_source_ranges_guard_load_balancer_addresses(row: Row, lab: Lab) -> None:
    """Who is in no range is dropped at load balancer addresses, whatever the endpoints, and nowhere else."""
    assert lab.mismatches(row) == []


@pytest.mark.parametrize("row", DETECTION_ROWS, ids=str)
def test_detectors_tell_local_pods(row: Row, lab: Lab) -> None:
    """Who counts as a pod of this node keeps its address and takes the short cut; masqueradeAll masks it."""
    assert lab.mismatches(row) == []


@pytest.mark.parametrize("row", NODE_PORT_ROWS, ids=str)
def test_node_port_addresses_choose_where_node_ports_are(row: Row, lab: Lab) -> None:
    """NodePorts are on the addresses asked for; every other address is left alone, and loopback always."""
    assert lab.mismatches(row) == []


def test_second_looks_are_rare(lab: Lab) -> None:
    """A slow machine may need a second look at some cells; at many, a fault that comes and goes would be overlooked."""
    lab.judgements(DEFAULT)
    assert lab.asked_again[DEFAULT] * 5 < len(cells_of(DEFAULT))
