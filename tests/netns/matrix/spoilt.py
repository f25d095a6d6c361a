"""Deliberately wrong rules, and what they do to the fate of each cell.

Each is a small change to a copy of the product's templates. What it does is said like any other behaviour, as a change
of the oracle's answer: the cells whose answer changes are those that have to notice.
"""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from netns.matrix.axes import NodePorts, Policy, Ranges, Source, State, Target
from netns.matrix.cells import BASE_ROWS, DEFAULT, HINT_ROWS, NODE_PORT_ROWS, RANGE_ROWS, STRAY_ROWS, Cell
from netns.matrix.expectation import (
    Dropped,
    Expectation,
    Rejected,
    Seen,
    Served,
    expect,
    is_node,
    is_pod_here,
    near,
)

TEMPLATES = Path(__file__).resolve().parents[3] / "templates"


class SpoilingError(RuntimeError):
    """A template does not hold what is to be spoilt; the message names it."""


@dataclass(frozen=True)
class Spoiling:
    """A wrong rule.

    Attributes:
        name: what is wrong.
        template: the file that is changed.
        pattern: what is replaced, exactly once: a regular expression.
        replacement: what takes its place.
        fate: what becomes of a cell under it.
    """

    name: str
    template: str
    pattern: str
    replacement: str
    fate: Callable[[Cell], Expectation]

    def write(self, folder: Path) -> Path:
        """Make a copy of the templates with this change.

        Raises:
            SpoilingError: the template has not, or not once, what is to be replaced.
        """
        copy = folder / "templates"
        shutil.copytree(TEMPLATES, copy)
        file = copy / self.template
        text, count = re.subn(self.pattern, self.replacement, file.read_text())
        if count != 1:
            msg = f"{self.name}: {self.template} has {count} of {self.pattern!r}"
            raise SpoilingError(msg)
        file.write_text(text)
        return copy

    def notices(self, cell: Cell) -> bool:
        """Whether a cell has to notice."""
        return self.fate(cell) != expect(cell)


def _external(cell: Cell) -> bool:
    return cell.target in {Target.NODE_PORT, Target.EXTERNAL_IP, Target.VIP}


def _unmasked(expected: Expectation) -> Expectation:
    return Served(dict.fromkeys(expected.by, Seen.CLIENT)) if isinstance(expected, Served) else expected


def _only_itself_masked(cell: Cell, expected: Expectation) -> Expectation:
    """As if nothing asked for masquerading but the way of an endpoint to itself."""
    if isinstance(expected, Served) and cell.source is Source.ENDPOINT:
        return Served({name: Seen.NODE if name == "pod-a1" else Seen.CLIENT for name in expected.by})
    return _unmasked(expected)


def _nearby(cell: Cell, seen: Seen) -> Expectation:
    names = near(cell)
    return Served(dict.fromkeys(names, seen)) if names else Dropped()


def _external_traffic_is_not_masked(cell: Cell) -> Expectation:
    concerned = _external(cell) and cell.shape.external is Policy.CLUSTER
    return _only_itself_masked(cell, expect(cell)) if concerned else expect(cell)


def _cluster_traffic_is_not_masked(cell: Cell) -> Expectation:
    return _only_itself_masked(cell, expect(cell)) if cell.target is Target.CLUSTER_IP else expect(cell)


def _pods_have_no_short_cut(cell: Cell) -> Expectation:
    concerned = _external(cell) and cell.shape.external is Policy.LOCAL and is_pod_here(cell.settings, cell.source)
    if not concerned or not isinstance(expect(cell), Served):
        return expect(cell)
    return _only_itself_masked(cell, _nearby(cell, Seen.CLIENT))


def _node_has_no_short_cut(cell: Cell) -> Expectation:
    concerned = _external(cell) and cell.shape.external is Policy.LOCAL and is_node(cell.source)
    return _nearby(cell, Seen.NODE) if concerned and isinstance(expect(cell), Served) else expect(cell)


def _ranges_let_everybody_in(cell: Cell) -> Expectation:
    return expect(replace(cell, shape=replace(cell.shape, ranges=Ranges.ANY)))


def _rejections_are_silent(cell: Cell) -> Expectation:
    expected = expect(cell)
    # What is for none of a ClusterIP's ports is rejected by a rule of its own.
    return Dropped() if isinstance(expected, Rejected) and cell.target is not Target.OTHER_PORT else expected


def _local_policy_takes_any_endpoint(cell: Cell) -> Expectation:
    from_outside = not is_node(cell.source) and not is_pod_here(cell.settings, cell.source)
    expected = expect(cell)
    if not (_external(cell) and cell.shape.external is Policy.LOCAL and from_outside and isinstance(expected, Served)):
        return expected
    # As the policy Cluster would choose, but nothing is masqueraded.
    return _unmasked(expect(replace(cell, shape=replace(cell.shape, external=Policy.CLUSTER))))


def _endpoints_cannot_reach_themselves(cell: Cell) -> Expectation:
    expected, otherwise = expect(cell), expect(replace(cell, source=Source.POD))
    if cell.source is Source.ENDPOINT and isinstance(expected, Served) and isinstance(otherwise, Served):
        return Served({name: otherwise.by[name] for name in expected.by})
    return expected


def _node_ports_are_on_every_address(cell: Cell) -> Expectation:
    accepted = expect(replace(cell, settings=replace(cell.settings, node_ports=NodePorts.ALL)))
    # What has no endpoints to go to is rejected and dropped by other rules, which know the right addresses.
    return accepted if cell.target.node_port and isinstance(accepted, Served) else expect(cell)


def _other_ports_are_silent(cell: Cell) -> Expectation:
    # The rule after it drops what is left for the range of all ClusterIPs.
    return Dropped() if cell.target is Target.OTHER_PORT else expect(cell)


SPOILINGS: tuple[Spoiling, ...] = (
    Spoiling(
        "traffic from outside is not masqueraded",
        "external.nft.j2",
        r"mark set mark or \S+ \S+ \S+ # masquerade\n",
        "",
        _external_traffic_is_not_masked,
    ),
    Spoiling(
        "traffic to ClusterIPs is not masqueraded",
        "base.nft.j2",
        r".* # masquerade clusterIP traffic from outside cluster\n",
        "",
        _cluster_traffic_is_not_masked,
    ),
    Spoiling(
        "pods have no short cut",
        "external.nft.j2",
        r".* # short-circuit pod traffic\n",
        "",
        _pods_have_no_short_cut,
    ),
    Spoiling(
        "the node has no short cut",
        "external.nft.j2",
        r".* # short-circuit local traffic\n",
        "",
        _node_has_no_short_cut,
    ),
    Spoiling(
        "source ranges let everybody in",
        "firewall.nft.j2",
        r"\ndrop\n",
        "\nreturn\n",
        _ranges_let_everybody_in,
    ),
    Spoiling(
        "rejections are silent",
        "base.nft.j2",
        r"\n    reject # helper",
        "\n    drop # helper",
        _rejections_are_silent,
    ),
    Spoiling(
        "policy Local takes any endpoint",
        "external.nft.j2",
        r"goto \{\{ chain\.policy_chain \}\}",
        "goto {{ chain.cluster_chain }}",
        _local_policy_takes_any_endpoint,
    ),
    Spoiling(
        "endpoints cannot reach themselves",
        "base.nft.j2",
        r".*@hairpin-connections masquerade.*\n",
        "",
        _endpoints_cannot_reach_themselves,
    ),
    Spoiling(
        "NodePorts are on every address",
        "base.nft.j2",
        r"\{\{ ip \}\} daddr @nodeport-ips meta l4proto \. th dport vmap @service-nodeports",
        "fib daddr type local meta l4proto . th dport vmap @service-nodeports",
        _node_ports_are_on_every_address,
    ),
    Spoiling(
        "other ports of ClusterIPs are silent",
        "base.nft.j2",
        r".* # Reject traffic to invalid ports of ClusterIPs\n",
        "",
        _other_ports_are_silent,
    ),
)

_STATES = {State.NONE, State.REMOTE, State.LOCAL, State.MIXED, State.HINT_LOCAL_AWAY}
_RANGES = {Ranges.ANY, Ranges.CLIENT, Ranges.ONE_FAMILY, Ranges.UNREADABLE}
CELLS: tuple[Cell, ...] = tuple(
    cell
    for row in (*BASE_ROWS, *STRAY_ROWS, *HINT_ROWS, *RANGE_ROWS, *NODE_PORT_ROWS)
    for cell in row.cells
    if cell.settings == DEFAULT
    and cell.shape.state in _STATES
    and cell.shape.ranges in _RANGES
    and cell.target is not Target.NODE_PORT_LOOPBACK  # with wrong rules the kernel's own ones have a say there
)
"""What is asked under wrong rules: enough of every part that each of them can be noticed."""
