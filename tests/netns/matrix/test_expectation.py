"""The oracle and the judge, against examples written by hand."""

from dataclasses import replace

import pytest

from netns import addresses as plan
from netns.matrix.axes import Detector, NodePorts, Policy, Protocol, Ranges, Settings, Source, State, Target
from netns.matrix.cells import DEFAULT, Cell, Shape, every_cell
from netns.matrix.expectation import Dropped, Expectation, Rejected, Seen, Served, Untouched, expect
from netns.matrix.ground import SHAPES, UNALLOCATED, destination, source_address
from netns.matrix.judge import Verdict, asks, judge
from netns.probe import Answer, Outcome, Refused, Unreachable
from netns.probe import Dropped as NoAnswer
from netns.probe import Rejected as PortUnreachable

CLUSTER, LOCAL = Policy.CLUSTER, Policy.LOCAL
AS_IS = Seen.CLIENT
MASKED = Seen.NODE


def cell(
    source: Source,
    target: Target,
    state: State,
    external: Policy = CLUSTER,
    internal: Policy = CLUSTER,
    ranges: Ranges = Ranges.ANY,
    settings: Settings = DEFAULT,
) -> Cell:
    return Cell(settings, Shape(external, internal, state, ranges), target, Protocol.TCP, 4, source)


def a1(seen: Seen) -> Served:
    return Served({"pod-a1": seen})


def b1(seen: Seen) -> Served:
    return Served({"pod-b1": seen})


NODE_CIDR, BRIDGE = Settings(Detector.NODE_CIDR), Settings(Detector.BRIDGE)
NOTHING, ALL = Settings(Detector.NOTHING), Settings(masquerade_all=True)
EXAMPLES: dict[str, tuple[Cell, Expectation]] = {
    "pod to ClusterIP": (cell(Source.POD, Target.CLUSTER_IP, State.LOCAL), a1(AS_IS)),
    "node to ClusterIP": (cell(Source.NODE, Target.CLUSTER_IP, State.LOCAL), a1(MASKED)),
    "outside to ClusterIP": (cell(Source.OUTSIDE, Target.CLUSTER_IP, State.REMOTE), b1(MASKED)),
    "pod to itself": (cell(Source.ENDPOINT, Target.CLUSTER_IP, State.LOCAL), a1(MASKED)),
    "pod to itself or another": (
        cell(Source.ENDPOINT, Target.CLUSTER_IP, State.MIXED),
        Served({"pod-a1": MASKED, "pod-b1": AS_IS}),
    ),
    "nothing anywhere, ClusterIP": (cell(Source.POD, Target.CLUSTER_IP, State.NONE), Rejected()),
    "nothing usable, VIP of policy Local": (cell(Source.OUTSIDE, Target.VIP, State.UNREADY, LOCAL), Rejected()),
    "nothing usable here, policy Local": (cell(Source.OUTSIDE, Target.NODE_PORT, State.REMOTE, LOCAL), Dropped()),
    "pod's short cut": (cell(Source.POD, Target.VIP, State.REMOTE, LOCAL), b1(AS_IS)),
    "node's short cut": (cell(Source.NODE, Target.EXTERNAL_IP, State.REMOTE, LOCAL), b1(MASKED)),
    "outside keeps its address": (cell(Source.OUTSIDE, Target.VIP, State.MIXED, LOCAL), a1(AS_IS)),
    "internal policy Local": (cell(Source.POD, Target.CLUSTER_IP, State.MIXED, CLUSTER, LOCAL), a1(AS_IS)),
    "internal policy Local, none here": (
        cell(Source.NODE, Target.CLUSTER_IP, State.REMOTE, CLUSTER, LOCAL),
        Dropped(),
    ),
    "internal policy does not concern NodePorts": (
        cell(Source.OUTSIDE, Target.NODE_PORT, State.REMOTE, CLUSTER, LOCAL),
        b1(MASKED),
    ),
    "policy Cluster masks pods": (cell(Source.POD, Target.NODE_PORT, State.LOCAL), a1(MASKED)),
    "terminating where nothing is ready": (
        cell(Source.POD, Target.CLUSTER_IP, State.TERMINATING),
        Served({"pod-a1": AS_IS, "pod-b1": AS_IS}),
    ),
    "ready before terminating": (cell(Source.POD, Target.CLUSTER_IP, State.DRAINING), b1(AS_IS)),
    "terminating here before ready elsewhere, policy Local": (
        cell(Source.OUTSIDE, Target.VIP, State.DRAINING, LOCAL),
        a1(AS_IS),
    ),
    "ipMode Proxy": (cell(Source.OUTSIDE, Target.PROXY_VIP, State.NONE), Untouched("router")),
    "out of the ranges": (cell(Source.POD, Target.VIP, State.LOCAL, ranges=Ranges.CLIENT), Dropped()),
    "in the ranges": (cell(Source.OUTSIDE, Target.VIP, State.LOCAL, ranges=Ranges.CLIENT), a1(MASKED)),
    "ranges guard no NodePort": (
        cell(Source.OUTSIDE_TOO, Target.NODE_PORT, State.LOCAL, ranges=Ranges.CLIENT),
        a1(MASKED),
    ),
    "out of the ranges without endpoints": (
        cell(Source.OUTSIDE_TOO, Target.VIP, State.NONE, ranges=Ranges.CLIENT),
        Dropped(),
    ),
    "node that has the VIP, in the ranges": (
        cell(Source.NODE_AS_VIP, Target.VIP, State.LOCAL, ranges=Ranges.NODE),
        a1(MASKED),
    ),
    "unreadable ranges let nobody in": (
        cell(Source.OUTSIDE, Target.VIP, State.LOCAL, ranges=Ranges.UNREADABLE),
        Dropped(),
    ),
    "another node's pod, ClusterCIDR": (cell(Source.OTHER_POD, Target.CLUSTER_IP, State.LOCAL), a1(AS_IS)),
    "another node's pod, NodeCIDR": (
        cell(Source.OTHER_POD, Target.CLUSTER_IP, State.LOCAL, settings=NODE_CIDR),
        a1(MASKED),
    ),
    "unknown address on the bridge": (
        cell(Source.STRANGER, Target.VIP, State.REMOTE, LOCAL, settings=BRIDGE),
        b1(AS_IS),
    ),
    "no detector masks no ClusterIP": (
        cell(Source.OUTSIDE, Target.CLUSTER_IP, State.LOCAL, settings=NOTHING),
        a1(AS_IS),
    ),
    "no detector, no short cut": (cell(Source.POD, Target.VIP, State.REMOTE, LOCAL, settings=NOTHING), Dropped()),
    "masqueradeAll": (cell(Source.POD, Target.CLUSTER_IP, State.REMOTE, settings=ALL), b1(MASKED)),
    "masqueradeAll is for ClusterIPs": (cell(Source.POD, Target.VIP, State.REMOTE, LOCAL, settings=ALL), b1(AS_IS)),
    "secondary address without NodePorts": (
        cell(Source.OUTSIDE, Target.NODE_PORT_SECONDARY, State.LOCAL),
        Untouched("node-a"),
    ),
    "secondary address with NodePorts": (
        cell(Source.OUTSIDE, Target.NODE_PORT_SECONDARY, State.LOCAL, settings=Settings(node_ports=NodePorts.ALL)),
        a1(MASKED),
    ),
    "zone hints": (
        cell(Source.POD, Target.CLUSTER_IP, State.HINT_ZONE),
        Served({"pod-a1": AS_IS, "pod-b2": AS_IS}),
    ),
    "node hints": (cell(Source.POD, Target.CLUSTER_IP, State.HINT_NODE), b1(AS_IS)),
    "policy Local ignores hints": (
        cell(Source.OUTSIDE, Target.NODE_PORT, State.HINT_LOCAL_AWAY, LOCAL),
        a1(AS_IS),
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_oracle_knows_the_examples(name: str) -> None:
    """The example's name says what it is about."""
    asked, expected = EXAMPLES[name]
    assert expect(asked) == expected


def test_examples_are_cells_of_the_matrix() -> None:
    """So what the examples say is asked of the kernel as well, but for combinations of settings made up here."""
    asked = {one for one, _ in EXAMPLES.values() if one.settings == DEFAULT}
    assert asked <= every_cell()


def test_every_fate_is_expected_of_many_cells() -> None:
    """No fate is rare enough that the matrix might as well be without it."""
    fates = [type(expect(one)) for one in every_cell()]
    for fate in (Served, Untouched, Rejected, Dropped):
        assert fates.count(fate) > 500, fate


ASKED = cell(Source.OUTSIDE, Target.VIP, State.MIXED)  # pod-a1 and pod-b1, both masqueraded
CLIENT = source_address(ASKED) or ""
GATEWAY, NODE = plan.pod_gateway(0).v4, plan.node_address(0).v4


def answer(name: str, source: str, *, client: str = CLIENT, port: int = 2) -> Answer:
    return Answer(name, source, port, client, 1)


RIGHT: list[Outcome] = [answer("pod-a1", GATEWAY), answer("pod-b1", NODE)]


def test_judge_accepts_what_is_right() -> None:
    """Both endpoints, each with the node's address on its own link."""
    assert judge(ASKED, RIGHT).verdict is Verdict.RIGHT


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (answer("pod-a2", GATEWAY), "pod-a2 that sees"),
        (answer("router", CLIENT), "router that sees"),
        (answer("pod-a1", CLIENT), f"pod-a1 that sees {CLIENT}"),
        (answer("pod-b1", GATEWAY), f"pod-b1 that sees {GATEWAY}"),
        (PortUnreachable(NODE), "Rejected"),
        (Refused(), "Refused"),
    ],
)
def test_judge_has_no_doubt_about_a_wrong_answer(wrong: Outcome, why: str) -> None:
    """A wrong endpoint, a wrong source address and a rejection are wrong however many answers were right."""
    judgement = judge(ASKED, [*RIGHT * 10, wrong])
    assert judgement.verdict is Verdict.WRONG
    assert why in judgement.why


@pytest.mark.parametrize("odd", [[*RIGHT, NoAnswer()], [*RIGHT, Unreachable()], RIGHT[:1]])
def test_judge_asks_again_what_chance_or_slowness_explains(odd: list[Outcome]) -> None:
    """Silence, and an endpoint that was not drawn, take a second look; they are not right."""
    assert judge(ASKED, odd).verdict is Verdict.UNSURE


def test_judge_takes_nothing_for_wrong() -> None:
    """A cell without an outcome is no success."""
    assert judge(ASKED, []).verdict is Verdict.WRONG


def test_judge_looks_at_the_port_where_the_address_tells_nothing() -> None:
    """The node's packets to another node have its address with and without masquerading."""
    masked = cell(Source.NODE, Target.CLUSTER_IP, State.REMOTE)
    plain = replace(masked, settings=NOTHING)
    kept, drawn = answer("pod-b1", NODE, client=NODE, port=1), answer("pod-b1", NODE, client=NODE)
    assert asks(masked) > 1
    assert judge(masked, [drawn, drawn]).verdict is Verdict.RIGHT
    assert judge(masked, [drawn, kept]).verdict is Verdict.UNSURE
    assert judge(plain, [kept, drawn]).verdict is Verdict.RIGHT
    assert judge(plain, [drawn, drawn]).verdict is Verdict.UNSURE


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (PortUnreachable(NODE), Verdict.RIGHT),
        (PortUnreachable(plan.pod_address(1, 1).v4), Verdict.WRONG),  # an endpoint that does not listen
        (Refused(), Verdict.WRONG),
        (NoAnswer(), Verdict.UNSURE),
        (answer("pod-a1", GATEWAY), Verdict.WRONG),
    ],
)
def test_judge_tells_a_rejection_from_all_else(outcome: Outcome, verdict: Verdict) -> None:
    """Only the node's own "port unreachable" is a rejection."""
    assert judge(cell(Source.OUTSIDE, Target.CLUSTER_IP, State.NONE), [outcome]).verdict is verdict


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (NoAnswer(), Verdict.RIGHT),
        (PortUnreachable(NODE), Verdict.WRONG),
        (answer("pod-b1", NODE), Verdict.WRONG),
    ],
)
def test_judge_tells_a_drop_from_all_else(outcome: Outcome, verdict: Verdict) -> None:
    """Silence is a drop; any answer is none."""
    assert judge(cell(Source.OUTSIDE, Target.VIP, State.REMOTE, LOCAL), [outcome]).verdict is verdict


def test_services_share_no_frontend() -> None:
    """No two Services of the matrix are dialled at one address and port: each cell asks its own."""
    assert len(SHAPES) < UNALLOCATED
    owners: dict[tuple[str, int], Shape] = {}
    for one in every_cell():
        if one.target is Target.UNALLOCATED:
            continue
        assert owners.setdefault(destination(one), one.shape) == one.shape
