"""Sets and maps that are in the table, but declared otherwise than the templates say: nobody is left out for that.

The kernel takes a set that is declared again only as it is (Linux 6.2), and transactions declare what their rules name.
"""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeproxy.ruleset.render import TEMPLATES

from .support import V4, Cluster, Table, endpoints, expected, listing, node, run, service, sticky, view

pytestmark = pytest.mark.usefixtures("namespace")

PLAIN = "set blocked {\n    type ipv4_addr\n}\n"
INTERVALS = "set blocked {\n    type ipv4_addr\n    flags interval\n}\n"
TYPED_BY_USE = "set blocked {\n    typeof ip saddr\n    flags timeout\n}\n"
FILLED = "set blocked {\n    type ipv4_addr\n    flags dynamic,timeout\n    timeout 10s\n}\n"
BLOCKING = "ip saddr @blocked drop"
CHANGES = (sticky("held", 4), endpoints("held", [2, 3]), service("web", 5), endpoints("web", [1, 2]))
NEW = (sticky("new", 6), endpoints("new", [2, 3, 4]))


@pytest.fixture
def copy(tmp_path: Path) -> Callable[..., Path]:
    """Makes a copy of the templates in which some begin with more, or have a line more."""
    made = 0

    def make(base: str = "", balancing: str = "", affinity: str = "", service_ips: str = "") -> Path:
        nonlocal made
        made += 1
        folder = tmp_path / str(made)
        shutil.copytree(TEMPLATES, folder)
        for name, before, more in (
            ("base.nft.j2", "set cluster-ips {", base),
            ("base.nft.j2", '    comment "ClusterIP, ExternalIP', service_ips),
            ("balancing.nft.j2", "{%- for endpoint in chain.sticky %}", balancing),
            ("affinity.nft.j2", "flags dynamic", affinity),
        ):
            text = (folder / name).read_text()
            assert before in text
            (folder / name).write_text(text.replace(before, f"{more}\n{before}" if more else before, 1))
        return folder

    return make


def restarted(table: Table, folder: Path) -> Table:
    """Another run of the program, with other templates, that is up."""
    after = Table(cluster=table.cluster, templates=folder)
    after.sync()
    return after


def assert_served(table: Table, *, taken_over: bool) -> None:
    """All service ports are in the table, nobody is left out, and another look finds nothing to do."""
    assert table.proxier.refused() == {}
    assert bool(table.last.took_over) is taken_over
    if taken_over:
        assert "declared otherwise" in table.last.took_over
    assert "ns/new/tcp" in run("nft", "list", "map", "ip", "kube-proxy", "service-ips")
    table.tidy()
    table.proxier.suspect(())
    assert table.sync() == []
    assert table.last.drift == ""


@pytest.mark.parametrize("after", [INTERVALS, TYPED_BY_USE], ids=["other flags", "typed by use"])
def test_templates_whose_own_set_is_declared_otherwise_replace_the_table(copy: Callable[..., Path], after: str) -> None:
    table = Table(*CHANGES, templates=copy(PLAIN, BLOCKING))
    table.sync()
    table = restarted(table, copy(after, BLOCKING))
    table.sync(*NEW)
    assert_served(table, taken_over=True)
    assert "flags" in run("nft", "list", "set", "ip", "kube-proxy", "blocked")


def test_templates_that_add_a_counter_to_a_dispatch_map_replace_the_table(copy: Callable[..., Path]) -> None:
    table = Table(*CHANGES, templates=copy())
    table.sync()
    table = restarted(table, copy(service_ips="    counter"))
    table.sync(*NEW)
    assert_served(table, taken_over=True)


def test_templates_that_declare_affinity_sets_otherwise_leave_nobody_out_and_lose_no_client(
    copy: Callable[..., Path],
) -> None:
    """The sets of new endpoints are of the new form at once, those of the others as soon as a rule names them."""
    table = Table(*CHANGES, templates=copy())
    table.sync()
    (name, *_) = table.planner.plans[next(n for n in table.planner.plans if n.service == "held")].sets
    run("nft", "add", "element", "ip", "kube-proxy", name.name, "{ 192.0.2.77 }")
    table = restarted(table, copy(affinity="counter"))
    table.sync(*NEW, endpoints("held", [2, 3, 5]))
    assert_served(table, taken_over=True)
    assert "192.0.2.77" in run("nft", "list", "set", "ip", "kube-proxy", name.name)


def test_set_that_somebody_made_anew_otherwise_leaves_nobody_out() -> None:
    """As with a saved listing that was edited: rules and elements are what they were, the declaration is not."""
    table = Table(*CHANGES)
    table.sync()
    saved = listing(V4).replace("map service-ips {", "map service-ips {\n counter")
    assert "counter" in saved
    run("nft", "-f", "-", text=f"delete table ip kube-proxy\n{saved}")
    table.sync(*NEW)
    assert_served(table, taken_over=True)
    assert view(V4) == expected(Table(cluster=Cluster(node(), *CHANGES, *NEW)))


@pytest.mark.parametrize("statement", ["update @blocked{ ip saddr }", "update @blocked { ip saddr }"])
def test_set_of_the_templates_own_is_found_however_its_name_is_written(
    copy: Callable[..., Path], statement: str
) -> None:
    table = Table(*CHANGES, templates=copy(FILLED, statement))
    table.sync()
    table.sync(*NEW)
    assert not table.last.full, "what is added does not need the table to be read back"
    assert_served(table, taken_over=False)


@pytest.mark.parametrize(
    "declared",
    [
        "set blocked {\n    type ipv4_addr\n    elements = { 203.0.113.7 }\n}\n",
        "set blocked {\n    type ipv4_addr\n    flags interval\n    elements = { 203.0.113.64/26 }\n}\n",
        "set blocked {\n    type ipv4_addr\n    flags dynamic,timeout\n    timeout 1h\n}\n",
    ],
    ids=["elements", "intervals", "filled by packets"],
)
def test_what_is_in_a_set_of_the_templates_own_stays_through_looks_changes_and_restarts(
    copy: Callable[..., Path], declared: str
) -> None:
    """It is no trace of somebody else, and not ours to empty: the rules of that template rely on it."""
    folder = copy(declared, BLOCKING)
    table = Table(*CHANGES, templates=folder)
    table.sync()
    run("nft", "add", "element", "ip", "kube-proxy", "blocked", "{ 203.0.113.9 }")
    before = sorted(re.findall(r"203\.[\d./]+", run("nft", "list", "set", "ip", "kube-proxy", "blocked")))
    table.proxier.suspect(())
    assert table.sync() == []
    assert table.last.drift == ""
    table.sync(*NEW)
    assert_served(table, taken_over=False)
    table = Table(cluster=table.cluster, templates=folder)
    assert table.sync() == []
    assert_served(table, taken_over=False)
    assert sorted(re.findall(r"203\.[\d./]+", run("nft", "list", "set", "ip", "kube-proxy", "blocked"))) == before
    assert len(before) >= 1


def test_elements_that_are_there_already_are_no_reason_to_replace_the_table() -> None:
    """A frontend that somebody took since the last look: it is put right, and the rest is left alone."""
    table = Table(*CHANGES)
    table.sync()
    subprocess.run(
        ["nft", "add element ip kube-proxy service-ips { 10.96.0.6 . tcp . 80 : drop }"], check=True, timeout=20
    )
    table.sync(*NEW)
    assert_served(table, taken_over=False)
