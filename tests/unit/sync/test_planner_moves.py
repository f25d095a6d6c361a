"""The planner says of new surroundings whether every Service has to be planned again, the first time in any case."""

import shutil
from pathlib import Path

import pytest

from nodeproxy.kube.addresses import Family
from nodeproxy.model.node import NodeView
from nodeproxy.ruleset.render import TEMPLATES, TemplateError
from nodeproxy.sync.planner import Planner, Surroundings

from .planning import SETTINGS
from .support import NODE, Cluster, node

V4 = Family.IPV4


def planner(templates: Path = TEMPLATES) -> Planner:
    return Planner(V4, SETTINGS, Cluster(node()).store.view, templates)


@pytest.mark.parametrize("name", ["", NODE])
def test_first_surroundings_always_count(name: str) -> None:
    """Even those that are like what the planner assumed before it had any."""
    made = planner()
    surroundings = Surroundings(NodeView(name))
    assert made.move(surroundings)
    assert not made.move(surroundings)


def test_first_surroundings_count_though_they_render_to_what_was_there() -> None:
    made = Planner(V4, SETTINGS.__class__(), Cluster(node()).store.view)
    before = made.renderer
    assert made.move(Surroundings(NodeView("")))
    assert made.renderer is before, "nothing had to be rendered anew"


@pytest.mark.parametrize("moved_before", [False, True], ids=["first", "later"])
def test_surroundings_that_a_template_failed_at_are_new_the_next_time(tmp_path: Path, moved_before: bool) -> None:
    """Else the Services would keep rules for what was before."""
    templates = Path(shutil.copytree(TEMPLATES, tmp_path / "templates"))
    base = templates / "base.nft.j2"
    good = base.read_text()
    base.write_text("{%- if service_cidrs %}{{ no_such_word }}{% endif -%}\n" + good)
    made = planner(templates)
    if moved_before:
        made.move(Surroundings(NodeView(NODE)))
    before = made.base
    later = Surroundings(NodeView(NODE, zone="zone-a"), ("10.96.0.0/16",), ("192.0.2.1",))
    for _ in range(2):
        with pytest.raises(TemplateError, match="no_such_word"):
            made.move(later)
        assert made.base == before
    base.write_text(good)
    assert made.move(later)
    assert made.base != before
    assert not made.move(later)
