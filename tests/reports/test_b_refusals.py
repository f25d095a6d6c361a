"""Transactions: what is refused, what is out of use, and what the log says."""

import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from netns.namespaces import CommandError, Namespace
from nodeproxy.kernel.errors import BusyError, TransactionError
from nodeproxy.kernel.nft import Nft
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Change
from nodeproxy.report.journal import Journal
from nodeproxy.ruleset.render import TABLE, TEMPLATES
from unit.sync.support import TABLE_FAMILY, V4, V6, Once, Table, endpoints, expected, gone, run, service, sticky, view

pytestmark = pytest.mark.usefixtures("namespace")

families = pytest.mark.parametrize("family", [V4, V6], ids=["IPv4", "IPv6"])


# --- B02: chains that come back ---------------------------------------------------------------------------------------

RETURNS: dict[str, list[Change]] = {
    "as it was": [service("s", 5), endpoints("s", [1, 2])],
    "with other endpoints": [service("s", 5), endpoints("s", [3, 4, 5])],
    "with one endpoint": [service("s", 5), endpoints("s", [2])],
    "without endpoints": [service("s", 5), endpoints("s", [])],
    "with affinity": [sticky("s", 5), endpoints("s", [1, 2])],
    "with another address": [service("s", 6), endpoints("s", [1, 2])],
}


@pytest.mark.parametrize("full", [False, True], ids=["", "with a full sync in between"])
@pytest.mark.parametrize("first", ["as it was", "with affinity"], ids=["plain at first", "affinity at first"])
@pytest.mark.parametrize("then", RETURNS)
def test_b02_service_that_comes_back_within_the_delay_keeps_what_it_uses(first: str, then: str, full: bool) -> None:
    """kubernetes/kubernetes#122604, #122605: a chain was deleted as stale that was in use again, time after time.

    What is deleted after the delay is what is out of use then; nothing is refused, and nothing remains.
    """
    table = Table(*RETURNS[first])
    table.sync()
    table.sync(gone("Service", "s"), gone("EndpointSlice", "s-1"))
    due = table.proxier.tidy_due()
    assert due is not None
    if full:
        table.clock.time = table.proxier.full_sync_due()
        table.sync()
    table.sync(*RETURNS[then])
    table.tidy()
    assert table.journal.tidying_failures == []
    assert table.journal.warned == []
    assert view(V4) == expected(table)
    assert table.again().sync() == []


def test_b02_chain_that_a_map_names_is_busy_until_both_go_at_once(namespace: Namespace) -> None:
    """kubernetes/kubernetes#122604: what the kernel says to it, and that references and chain may go together."""
    namespace.nft(
        "add table ip t\nadd chain ip t c\n"
        "add map ip t m { type inet_service : verdict ; elements = { 80 : goto c } ; }\n"
    )
    nft = Nft()
    with pytest.raises(BusyError, match="Device or resource busy"):
        nft.run("flush chain ip t c\ndelete chain ip t c\n")
    nft.run("delete element ip t m { 80 }\nflush chain ip t c\ndelete chain ip t c\n")
    with pytest.raises(CommandError):
        namespace.run("nft", "list", "chain", "ip", "t", "c")


# --- B04: who is at fault ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True], ids=["first sync", "change"])
def test_b04_log_names_the_service_the_reason_and_the_statement(tmp_path: Path, known: bool) -> None:
    """kubernetes/kubernetes#128829, #128886: syncs failed for minutes, and nobody could tell why.

    One line for the Service at fault, with what nft said and of which statement; the sync goes on without it.
    """
    good = [service("good", 1), endpoints("good", [1, 2]), service("better", 2), endpoints("better", [1])]
    table = Table(*good, templates=spoilt_templates(tmp_path))
    table.proxier._journal = Journal()
    if known:
        table.sync()
    with capture_logs() as lines:
        table.sync(service("bad", 7), endpoints("bad", [1, 2]), endpoints("good", [1, 2, 3]))
    (line,) = [line for line in lines if line["event"] == "service port refused"]
    assert line["service"] == "ns/bad"
    assert line["log_level"] == "error"
    assert "syntax error" in line["reason"]
    assert "add chain ip " in line["statement"]
    assert "ns/bad/tcp/" in line["statement"]
    assert "no such words" in line["statement"]
    filled = run("nft", "list", "map", "ip", TABLE, "endpoints-tcp-0")
    assert "10.244.0.3 . 8080" in filled, "others change in the same sync"
    with capture_logs() as lines:
        table.sync(endpoints("better", [2]))
    assert [line for line in lines if line["event"] == "service port refused"] == [], "said once"


def spoilt_templates(folder: Path) -> Path:
    """Templates that spell the rules of Services called ``bad…`` in a way that nft does not read."""
    templates = folder / "templates"
    shutil.copytree(TEMPLATES, templates)
    path = templates / "transaction.nft.j2"
    before, rule = path.read_text(), "{{ o.rule.text }}"
    path.write_text(before.replace(rule, "{% if '/bad' in o.chain %}no such words {% endif %}" + rule))
    assert path.read_text() != before
    return templates


def test_b04_log_is_not_flooded_when_many_services_are_refused(tmp_path: Path) -> None:
    """kubernetes/kubernetes#128829: of sixty at once some are named, the rest is counted, and none is said again."""
    objects: list[Change] = [service("good", 250), endpoints("good", [1])]
    for number in range(60):
        objects += [service(f"bad{number}", number + 1), endpoints(f"bad{number}", [1])]
    table = Table(*objects, templates=spoilt_templates(tmp_path))
    table.proxier._journal = Journal()
    with capture_logs() as lines:
        table.sync()
    said = [line for line in lines if line["event"] == "service port refused"]
    named = [line for line in said if "service" in line]
    assert 5 <= len(named) <= 25
    (rest,) = [line for line in said if "service" not in line]
    assert rest["more"] == 60 - len(named)
    assert len(table.proxier.refused()) == 60
    with capture_logs() as lines:
        table.clock.time = table.proxier.full_sync_due()
        table.sync()
    assert [line for line in lines if line["event"] == "service port refused"] == []


def test_b04_transaction_that_is_nobodys_fault_is_logged_and_all_is_read_back() -> None:
    """kubernetes/kubernetes#128829, #128886: the first failure already has the table compared as a whole."""
    table = Table(service("a", 1), endpoints("a", [1, 2]))
    table.sync()
    table.proxier._journal = Journal()
    once = Once(TransactionError("No such file or directory", statement="add element ip kube-proxy service-ips {"))
    table.nft.before = once
    with capture_logs() as lines:
        table.sync(endpoints("a", [3, 4]))
    assert once.spent
    assert [(line["event"], line["next"]) for line in lines if line["log_level"] == "warning"] == [
        ("table differs from what was known", "full sync")
    ]
    table.tidy()
    assert view(V4) == expected(table)


# --- B26: removing what is out of use --------------------------------------------------------------------------------


def test_b26_chain_with_rules_may_be_deleted_but_not_one_that_something_names(namespace: Namespace) -> None:
    """cloudnativelabs/kube-router#2064: what blocks the deletion of a chain is what leads to it, not what it holds."""
    namespace.nft(
        "add table ip t\nadd chain ip t a\nadd chain ip t b\nadd rule ip t a drop\nadd rule ip t b drop\n"
        "add map ip t m { type inet_service : verdict ; elements = { 80 : goto b } ; }\n"
    )
    namespace.nft("delete chain ip t a\n")
    for text in ("delete chain ip t b\n", "flush chain ip t b\ndelete chain ip t b\n"):
        with pytest.raises(CommandError, match="Device or resource busy"):
            namespace.nft(text)


@families
def test_b26_chains_are_emptied_before_they_are_deleted_and_what_leads_to_them_went_before(family: Family) -> None:
    """cloudnativelabs/kube-router#2064: both in a transaction of its own, later than what stops using them."""
    table = Table(sticky("a", 1, family=family), endpoints("a", [1, 2], family=family), family=family)
    table.sync()
    (change,) = table.sync(gone("Service", "a"), gone("EndpointSlice", "a-1"))
    assert "delete chain" not in change
    assert f"delete element {TABLE_FAMILY[family]} {TABLE} service-ips" in change
    lines = "\n".join(table.tidy()).splitlines()
    deleted = [line.partition(" # ")[0].split()[-1] for line in lines if line.startswith("delete chain")]
    assert len(deleted) == 3
    for name in deleted:
        verbs = [line.split()[0] for line in lines if f" {name} " in line and " chain " in line]
        assert verbs == ["flush", "delete"]
    assert view(family) == expected(table)


def test_b26_chain_that_cannot_be_deleted_does_not_stop_changes() -> None:
    """cloudnativelabs/kube-router#2064: a clean-up that fails is reported; all else goes on, and it is made good."""
    table = Table(service("a", 1), endpoints("a", [1, 2]), service("b", 2), endpoints("b", [1, 2]))
    table.sync()
    (name,) = [key.removeprefix("chain ") for key in view(V4) if key.startswith("chain service-") and "/a/" in key]
    run("nft", "-f", "-", text=f"add chain ip {TABLE} other\nadd rule ip {TABLE} other goto {name}\n")
    table.sync(gone("Service", "a"), gone("EndpointSlice", "a-1"))
    due = table.proxier.tidy_due()
    while due is not None and not table.journal.tidying_failures:
        table.clock.time = max(table.clock.time, due)
        table.proxier.tidy()
        due = table.proxier.tidy_due()
    assert isinstance(table.journal.tidying_failures[0], BusyError)
    table.nft.taken()
    table.sync(endpoints("b", [3, 4]))
    assert table.proxier.refused() == {}
    table.tidy()
    assert view(V4) == expected(table), "and the other chain, which held it, is gone as well"


def test_b26_clean_up_that_fails_again_and_again_stops_no_change() -> None:
    """cloudnativelabs/kube-router#2064: as if the kernel never let a chain go."""
    table = Table(service("a", 1), endpoints("a", [1, 2]), service("b", 2), endpoints("b", [1, 2]))
    table.sync()

    def refuse(text: str) -> None:
        if "delete chain" in text:
            raise TransactionError("Could not process rule: Operation not supported")

    table.nft.before = refuse
    table.sync(gone("Service", "a"), gone("EndpointSlice", "a-1"))
    for turn in range(1, 6):
        table.clock.time += 100
        table.proxier.tidy()
        table.sync(endpoints("b", [10 + turn, 20 + turn]))
        held = run("nft", "list", "map", "ip", TABLE, "endpoints-tcp-0")
        assert f"10.244.0.{10 + turn} . 8080" in held
        assert f"10.244.0.{20 + turn} . 8080" in held
    assert table.journal.tidying_failures
    table.nft.before = lambda _: None
    table.clock.time = table.proxier.full_sync_due()
    table.sync()
    table.tidy()
    assert view(V4) == expected(table)
