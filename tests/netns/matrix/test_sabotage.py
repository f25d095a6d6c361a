"""Wrong rules, put in by ``--templates``, are noticed by exactly the cells that should notice."""

from pathlib import Path

import pytest

from netns.matrix.axes import Protocol
from netns.matrix.cells import DEFAULT
from netns.matrix.expectation import expect
from netns.matrix.judge import Verdict
from netns.matrix.lab import Lab
from netns.matrix.spoilt import CELLS, SPOILINGS, Spoiling, SpoilingError

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    ("spoiling", "protocol"),
    [(spoiling, tuple(Protocol)[number % 3]) for number, spoiling in enumerate(SPOILINGS)],
    ids=[spoiling.name for spoiling in SPOILINGS],
)
def test_wrong_rule_is_noticed_where_it_should_be(
    spoiling: Spoiling, protocol: Protocol, lab: Lab, tmp_path: Path
) -> None:
    """Every cell whose fate the wrong rule changes fails, and no other cell does."""
    cells = [cell for cell in CELLS if cell.protocol is protocol]
    should = {cell for cell in cells if spoiling.notices(cell)}
    assert should
    assert len(should) * 2 < len(cells)
    judged, _ = lab.run(DEFAULT, cells, spoiling.write(tmp_path), times=3, failing=should)
    assert judged.keys() == set(cells)
    noticed = {cell for cell, judgement in judged.items() if judgement.verdict is not Verdict.RIGHT}
    assert sorted(map(str, should - noticed)) == []
    assert sorted(f"{cell}: {judged[cell].why}" for cell in noticed - should) == []


def test_unspoilt_copy_of_the_templates_is_right(lab: Lab, tmp_path: Path) -> None:
    """The same cells are all right with a copy that is changed by nothing but white space."""
    harmless = Spoiling("nothing", "external.nft.j2", r" # masquerade\n", "  # masquerade\n", expect)
    cells = [cell for cell in CELLS if cell.protocol is Protocol.TCP]
    judged, _ = lab.run(DEFAULT, cells, harmless.write(tmp_path))
    wrong = {str(cell): judgement.why for cell, judgement in judged.items() if judgement.verdict is not Verdict.RIGHT}
    assert wrong == {}


def test_spoiling_that_finds_nothing_to_spoil_is_an_error(tmp_path: Path) -> None:
    """When the templates change so that a spoiling would do nothing, that is said."""
    lost = Spoiling("lost", "external.nft.j2", "no such rule", "", SPOILINGS[0].fate)
    with pytest.raises(SpoilingError, match=r"lost: external\.nft\.j2 has 0"):
        lost.write(tmp_path)
