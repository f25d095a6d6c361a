"""What a sync finds out about changes that others made, and what it says of them: never more than it put right."""

from pathlib import Path

import pytest

from nodeproxy.kernel.audit import Difference, TableAudit
from nodeproxy.kernel.errors import TransactionError

from .spoiling import spoil
from .support import V4, Once, Table, endpoints, run, service, view

pytestmark = pytest.mark.usefixtures("namespace")


def hour(table: Table) -> list[str]:
    """Let time pass until all of the table is looked at, and return the transactions."""
    table.clock.time = max(table.clock.time, table.proxier.full_sync_due())
    return table.sync()


def edit_under_its_comment(name: str, change: tuple[str, str]) -> None:
    """Replace a word in a chain whose name holds ``name``, and leave the comments as they are."""
    listed = run("nft", "list", "chains", "ip")
    chain = next(line.split()[1] for line in listed.splitlines() if "chain" in line and name in line)
    before = run("nft", "list", "chain", "ip", "kube-proxy", chain)
    edited = before.replace(*change)
    assert edited != before
    run("nft", "-f", "-", text=f"flush chain ip kube-proxy {chain}\n{edited}")


def test_rule_edited_under_its_comment_is_found_beside_a_service_that_is_left_out(tmp_path: Path) -> None:
    """Also when nothing was heard of it: its handle is another."""
    folder = spoil(tmp_path / "templates", "missing chain", {"bad"})
    table = Table(
        service("bad", 1), endpoints("bad", [1, 2]), service("good", 2), endpoints("good", [3]), templates=folder
    )
    table.sync()
    assert {name.service for name in table.proxier.refused()} == {"bad"}
    hour(table)
    assert table.last.drift == ""
    held = view(V4)
    edit_under_its_comment("/good/", ("10.244.0.3", "10.244.0.66"))
    assert view(V4) != held
    hour(table)
    assert view(V4) == held
    assert "/good/" in table.last.drift
    assert {name.service for name in table.proxier.refused()} == {"bad"}


def test_what_stays_of_a_service_that_is_left_out_is_as_it_should_be(tmp_path: Path) -> None:
    """Its slots hold what they did; nobody has changed anything."""
    folder = tmp_path / "templates"
    table = Table(service("bad", 1), endpoints("bad", [1, 2]), service("good", 2), endpoints("good", [3, 4]))
    table.sync()
    held = view(V4)
    table = Table(cluster=table.cluster, templates=spoil(folder, "missing chain", {"bad"}))
    table.cluster.apply(endpoints("bad", [5, 6, 7]))
    table = table.again()
    table.sync()
    assert {name.service for name in table.proxier.refused()} == {"bad"}
    state = table.proxier._state
    assert state is not None
    assert table.proxier._audit.look(state, table.planner.base[0]) is None
    assert hour(table) == []
    assert {key: value for key, value in view(V4).items() if "/bad/" in key} == {
        key: value for key, value in held.items() if "/bad/" in key
    }


def test_rule_that_is_kept_as_others_left_it_is_reported_by_no_sync_that_writes_nothing(tmp_path: Path) -> None:
    """What it was is not known, so it can't be put right; and nothing is said to be corrected."""
    folder = tmp_path / "templates"
    table = Table(service("bad", 1), endpoints("bad", [1]))
    table.sync()
    table = Table(cluster=table.cluster, templates=spoil(folder, "missing chain", {"bad"}))
    table.cluster.apply(endpoints("bad", [5]))
    table = table.again()
    table.sync()
    hour(table)
    edit_under_its_comment("/bad/", ("10.244.0.1", "10.244.0.66"))
    for _ in range(2):
        assert hour(table) == []
        assert table.last.drift == ""
    assert "10.244.0.66" in run("nft", "list", "table", "ip", "kube-proxy")


def test_difference_whose_correction_fails_is_reported_by_the_sync_that_corrects_it() -> None:
    table = Table(service("web", 1), endpoints("web", [1, 2]))
    table.sync()
    held = view(V4)
    run("nft", "flush", "chain", "ip", "kube-proxy", "services")
    table.nft.before = Once(TransactionError("No"))
    with pytest.raises(TransactionError, match="No"):
        hour(table)
    table.sync()
    assert view(V4) == held
    assert table.last.drift


def test_table_that_could_not_be_looked_at_and_is_right_is_not_reported_as_corrected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table(service("web", 1), endpoints("web", [1, 2]))
    table.sync()
    monkeypatch.setattr(TableAudit, "look", lambda *_: Difference("it kept changing while it was read"))
    assert hour(table) == []
    assert table.last.full
    assert table.last.drift == ""
