"""kube-proxy and nodeproxy on the same objects: each flow has the same fate, or docs/differences.md says why not."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.differential.cells import whole_rounds
from cluster.differential.known import KNOWN, Difference
from cluster.differential.laboratory import Laboratory
from cluster.differential.questions import Frontend
from cluster.differential.report import missing_cells, missing_traits, missing_ways, report, unasked_cells
from netns.matrix.spoilt import SPOILINGS, Spoiling

pytestmark = pytest.mark.timeout(1800)
DIFFERENCES = Path(__file__).resolve().parents[3] / "docs" / "differences.md"
LEAST_FLOWS = 200


def test_same_objects_same_fate(seed: int, laboratory: Laboratory) -> None:
    """Whatever a seed's flows reach, as whom, or how they fail: with nodeproxy it is as with kube-proxy."""
    result = laboratory.result(seed)
    assert result.differences == [], report(result)
    assert len(result.fates) >= LEAST_FLOWS
    assert any(theirs.reached for theirs, _ in result.fates.values())


def test_everything_came_up(all_seeds: list[int], laboratory: Laboratory) -> None:
    """Ten seeds in a row hold every type with every policy and state, and all else that may be drawn."""
    results = [laboratory.result(seed) for seed in all_seeds]
    lacking = {
        "no Service": missing_cells(results),
        "no flow": unasked_cells(results),
        "never drawn": missing_traits(results),
        "neither dialled nor was dialled": missing_ways(results),
        "explained no difference": _unneeded([one for result in results for one in result.explained]),
    }
    for what, names in lacking.items():
        for name in names:
            print(f"{what}: {name}")
    if whole_rounds(all_seeds) and not laboratory.self_check:
        assert not any(lacking.values()), lacking


def test_clients_are_remembered_as_long_on_both_sides(laboratory: Laboratory) -> None:
    """With session affinity, all stay within the timeout; after it, some move on."""
    stay = laboratory.movers(affinity=600, pause=4)
    assert set(stay.values()) == {0}, stay
    move = laboratory.movers(affinity=2, pause=6)
    assert len(move) == 4
    assert 0 not in move.values(), move


def _unneeded(explained: list[tuple[Difference, object]]) -> list[str]:
    used = {known for _, known in explained}
    return [known.entry for known in KNOWN if known not in used]


def test_differences_on_purpose_are_documented() -> None:
    """Each has a row of its own in docs/differences.md."""
    rows = [line.split("|")[1].strip() for line in DIFFERENCES.read_text().splitlines() if line.startswith("|")]
    assert [known.entry for known in KNOWN if rows.count(known.entry) != 1] == []


def _of(*frontends: Frontend) -> Callable[[Difference], bool]:
    return lambda found: found.question.frontend in frontends


_NODE_PORTS = tuple(frontend for frontend in Frontend if frontend.node_port)
_EXTERNAL = (Frontend.VIP, Frontend.EXTERNAL_IP, *_NODE_PORTS)
_SPOILT: dict[str, Callable[[Difference], bool]] = {
    "traffic from outside is not masqueraded": _of(*_EXTERNAL),
    "policy Local takes any endpoint": _of(*_EXTERNAL),
    "source ranges let everybody in": _of(Frontend.VIP),
    "rejections are silent": lambda found: found.ours.failures == {"dropped"},
    "endpoints cannot reach themselves": lambda found: found.question.origin.startswith("pod-"),
}
_OTHER_BIT = Spoiling(
    "what is masqueraded is marked by another bit",
    "base.nft.j2",
    r"mark and \{\{ mark \}\} != 0 mark set",
    "mark and 0x00000100 != 0 mark set",
    SPOILINGS[0].fate,
)


class TestWrongRules:
    """Wrong rules on nodeproxy's side are noticed, by the flows that they concern and no others."""

    SEED = 0

    @pytest.fixture(autouse=True)
    def _not_in_a_self_check(self, self_check: bool) -> None:
        if self_check:
            pytest.skip("kube-proxy has no templates")

    @pytest.mark.parametrize("name", _SPOILT)
    def test_wrong_template_is_noticed(self, name: str, laboratory: Laboratory, tmp_path: Path) -> None:
        """A wrong rule changes the fate of flows."""
        spoiling = next(spoiling for spoiling in SPOILINGS if spoiling.name == name)
        found = laboratory.counter_check(self.SEED, f"--templates={spoiling.write(tmp_path)}")
        assert found
        assert [str(one.question) for one in found if not _SPOILT[name](one)] == []

    def test_another_mark_is_noticed(self, laboratory: Laboratory, tmp_path: Path) -> None:
        """Where marking and masquerading mean different bits, nothing that is marked is masqueraded."""
        found = laboratory.counter_check(self.SEED, f"--templates={_OTHER_BIT.write(tmp_path)}")
        assert any(one.question.frontend is Frontend.CLUSTER_IP for one in found)
        assert any(one.question.frontend in _NODE_PORTS for one in found)

    def test_another_setting_is_noticed(self, laboratory: Laboratory) -> None:
        """Masquerading everything on one side only is seen by the endpoints of ClusterIPs."""
        found = laboratory.counter_check(self.SEED, "--masquerade-all=true")
        assert found
        assert {one.question.frontend for one in found} == {Frontend.CLUSTER_IP}

    def test_unspoilt_copy_makes_no_difference(self, laboratory: Laboratory, tmp_path: Path) -> None:
        """A copy of the templates that is changed by nothing but white space has the same fates."""
        harmless = Spoiling(
            "nothing", "external.nft.j2", r" # masquerade\n", "  # masquerade\n", SPOILINGS[0].fate
        ).write(tmp_path)
        assert re.search("  # masquerade\n", (harmless / "external.nft.j2").read_text())
        assert laboratory.counter_check(self.SEED, f"--templates={harmless}") == []
