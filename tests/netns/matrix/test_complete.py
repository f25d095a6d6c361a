"""No cell of the matrix is without a case; and the check that says so can fail."""

from collections import Counter
from functools import partial

import pytest

from netns.addresses import FAMILIES
from netns.matrix import axes, cells, test_rows
from netns.matrix.axes import Detector, EndpointChains, NodePorts, Policy, Protocol, Settings, Source, State, Target
from netns.matrix.cells import BASE_ROWS, DEFAULT, VARIANTS, Cell, Row, Shape, every_cell
from netns.matrix.coverage import asserted, faults, running_tests
from netns.matrix.lab import Lab


def test_every_cell_has_exactly_one_case() -> None:
    """Each generated cell is asserted by one row of one test that runs."""
    assert faults(running_tests(test_rows), every_cell()) == []


def test_base_is_the_whole_product() -> None:
    """Both policies, all endpoint states, destinations, protocols, families and sources: nothing is left out."""
    states = {"none", "unready", "remote", "local", "terminating", "mixed"} | {
        "terminating remote",
        "terminating local",
        "local terminating, remote ready",
    }
    targets = {"ClusterIP", "NodePort", "externalIP", "VIP", "VIP with ipMode Proxy"}
    protocols, families = {"TCP", "UDP", "SCTP"}, {4, 6}
    sources = {"pod", "endpoint", "node", "outside", "pod of another node"}
    words = {
        (
            cell.shape.external.value,
            cell.shape.internal.value,
            cell.shape.state.value,
            cell.target.value,
            cell.protocol.value,
            cell.family,
            cell.source.value,
        )
        for cell in cells.base()
    }
    policies = {"Cluster", "Local"}
    wanted = {
        (external, internal, state, target, protocol, family, source)
        for external in policies
        for internal in policies
        for state in states
        for target in targets
        for protocol in protocols
        for family in families
        for source in sources
    }
    assert words == wanted


def test_every_setting_is_tried() -> None:
    """Each local detector, masqueradeAll, each way to name node-port addresses, and both values of endpointChains."""
    tried = {cell.settings for cell in every_cell()}
    assert {settings.detector for settings in tried} == set(Detector)
    assert {settings.detector.value for settings in tried} >= {
        "ClusterCIDR",
        "NodeCIDR",
        "BridgeInterface",
        "InterfaceNamePrefix",
    }
    assert {settings.detector for settings in tried if settings.masquerade_all} == {
        Detector.CLUSTER_CIDR,
        Detector.BRIDGE,
        Detector.NOTHING,
    }
    assert {settings.node_ports for settings in tried} == set(NodePorts)
    assert {settings.node_ports.value for settings in tried} >= {"primary", "all", "localhost"}
    assert {settings.endpoint_chains for settings in tried} == set(EndpointChains)


PARTS = {
    "types": cells.kinds,
    "strays": cells.strays,
    "internal only": cells.internal_only,
    "hints": cells.hints,
    "ranges": cells.ranges,
    **{f"local pods, {settings}": partial(cells.detection, settings) for settings in (DEFAULT, *VARIANTS)},
    **{f"NodePort addresses, {settings}": partial(cells.node_ports, settings) for settings in (DEFAULT, *VARIANTS)},
}


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_over_all_protocols_families_and_policies(part: str) -> None:
    """Whatever else a part combines, it does so over each protocol, in both families, under both policies."""
    groups = Counter((cell.protocol, cell.family) for cell in PARTS[part]())
    assert set(groups) == {(protocol, family) for protocol in Protocol for family in FAMILIES}
    assert len(set(groups.values())) == 1
    policies = {"external": {cell.shape.external for cell in PARTS[part]()}}
    policies["internal"] = {cell.shape.internal for cell in PARTS[part]()}
    assert set(Policy) in policies.values()


def test_every_value_of_every_axis_is_in_a_cell() -> None:
    """No state, range, destination or source is defined and never asked."""
    every = every_cell()
    assert {cell.shape.state for cell in every} == set(State)
    assert {cell.shape.ranges for cell in every} == set(axes.Ranges)
    assert {cell.shape.kind for cell in every} == set(axes.Kind)
    assert {cell.target for cell in every} == set(Target)
    assert {cell.source for cell in every} == set(Source)


CELLS = tuple(
    Cell(Settings(), Shape(Policy.CLUSTER, Policy.LOCAL, State.LOCAL), Target.VIP, protocol, 4, Source.POD)
    for protocol in Protocol
)
ROW, OTHER = Row("first", CELLS[:2]), Row("second", CELLS[2:])


def test_missing_cell_is_noticed() -> None:
    """Were a row of the base matrix lost, each of its cells would be named."""

    @pytest.mark.parametrize("row", BASE_ROWS[1:], ids=str)
    def base(row: Row) -> None: ...

    lost = faults([base], {cell for row in BASE_ROWS for cell in row.cells})
    assert len(lost) == len(BASE_ROWS[0].cells)
    assert all(line.startswith("no case: from") and str(BASE_ROWS[0].cells[0].shape) in line for line in lost)


def test_skipped_cell_counts_as_missing() -> None:
    """A row, or a test, that is marked to be skipped or to fail asserts nothing."""

    @pytest.mark.parametrize("row", [ROW, pytest.param(OTHER, marks=pytest.mark.skip(reason="tried here"))])
    def partly(row: Row) -> None: ...

    @pytest.mark.xfail(reason="tried here")
    @pytest.mark.parametrize("row", [ROW])
    def wholly(row: Row) -> None: ...

    assert faults([partly], set(CELLS)) == [f"no case: {CELLS[2]}"]
    assert not asserted([wholly])


def test_cell_with_two_cases_and_unknown_cell_are_noticed() -> None:
    """A cell in two rows, and a row of a cell that was never generated, are named."""

    @pytest.mark.parametrize("row", [ROW, Row("again", CELLS[:2])])
    def twice(row: Row) -> None: ...

    @pytest.mark.parametrize("row", [ROW, OTHER])
    def more(row: Row) -> None: ...

    assert faults([twice], set(CELLS[:2])) == [f"2 cases: {cell}" for cell in CELLS[:2]]
    assert faults([more], set(CELLS[:2])) == [f"unknown: {CELLS[2]}"]


@pytest.mark.timeout(600)
def test_cell_that_was_never_asked_is_a_mismatch(lab: Lab) -> None:
    """A row fails for a cell of which nothing is known, even if it is generated."""
    odd = Cell(Settings(), Shape(Policy.LOCAL, Policy.LOCAL, State.HINT_NODE), Target.VIP, Protocol.TCP, 4, Source.POD)
    assert lab.mismatches(Row("odd", (odd,))) == [f"{odd}: it was never asked"]
