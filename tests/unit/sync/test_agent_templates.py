"""Templates that turn out to be broken while the agent works: it goes on, and so does the other family."""

import shutil
from pathlib import Path

import pytest

from netns.namespaces import Namespace
from nodeproxy.kube.addresses import Family
from nodeproxy.ruleset import diff
from nodeproxy.ruleset.render import TEMPLATES, TemplateError

from .running import WEB, Journal, Speaking, eventually, holds, running
from .support import gone, service, service_cidr

V4, V6 = Family.IPV4, Family.IPV6
SIX = service("six", 6, family=V6)


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    """A copy of the templates, to be changed."""
    return Path(shutil.copytree(TEMPLATES, tmp_path / "templates"))


@pytest.fixture
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes out of use is deleted soon."""
    monkeypatch.setattr(diff, "SLOT_GRACE", 0.05)
    monkeypatch.setattr(diff, "CHAIN_GRACE", 0.1)


def save(path: Path, text: str) -> None:
    """Replace a file at once: the agent may look at any moment."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def failing(journal: Journal, *families: Family) -> None:
    """The failures are those of templates, of these families only."""
    assert {family for family, _ in journal.failures} == set(families)
    assert all(isinstance(error, TemplateError) for _, error in journal.failures)


def test_fault_that_shows_with_a_service_cidr_only_fails_the_sync_until_it_is_mended(
    namespace: Namespace, templates: Path
) -> None:
    """New surroundings are new rules of the base: they are taken as soon as the template lets them."""
    base = templates / "base.nft.j2"
    good = base.read_text()
    base.write_text("{%- if service_cidrs %}{{ no_such_word }}{% endif -%}\n" + good)
    source = Speaking(*WEB, SIX)
    with running(source, templates) as journal:
        eventually(lambda: {result.family for result in journal.results} == {V4, V6})
        source.sink.apply([service_cidr("10.96.0.0/16"), service("late", 9), service("late-six", 7, family=V6)])
        eventually(lambda: holds(namespace, "cluster-ips", "fd00:96::7", V6))
        eventually(lambda: len(journal.failures) > 2)
        failing(journal, V4)
        assert "base.nft.j2:1: 'no_such_word' is undefined" in str(journal.failures[0][1])
        assert holds(namespace, "cluster-ips", "10.96.0.10"), "the old rules stay"
        source.sink.apply([gone("Service", "web")])
        save(base, good)
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.9"))
        eventually(lambda: not holds(namespace, "cluster-ips", "10.96.0.10"))
        assert "10.96.0.0/16" in namespace.run("nft", "list", "table", "ip", "kube-proxy")


def test_template_that_is_saved_by_halves_fails_the_sync_until_it_is_saved_as_a_whole(
    namespace: Namespace, templates: Path
) -> None:
    external = templates / "external.nft.j2"
    good = external.read_text()
    source = Speaking(*WEB, SIX)
    with running(source, templates) as journal:
        eventually(lambda: {result.family for result in journal.results} == {V4, V6})
        save(external, good[: good.index("{%- else %}") + 4])
        source.sink.apply([service_cidr("10.96.0.0/16")])  # templates are read anew with the rules of the base
        reached = service("web", externalIPs=["198.51.100.7"])  # the first Service that needs this template
        source.sink.apply([reached, service("late-six", 7, family=V6)])
        eventually(lambda: holds(namespace, "cluster-ips", "fd00:96::7", V6))
        eventually(lambda: len(journal.failures) > 2)
        failing(journal, V4)
        assert "external.nft.j2:" in str(journal.failures[0][1])
        assert holds(namespace, "service-ips", "10.96.0.10", kind="map"), "the old rules stay"
        assert not holds(namespace, "service-ips", "198.51.100.7", kind="map")
        save(external, good)
        eventually(lambda: holds(namespace, "service-ips", "198.51.100.7", kind="map"))


@pytest.mark.parametrize("kept", [False, True], ids=["empty", "cut between blocks"])
def test_base_that_is_cut_off_leaves_the_table_as_it_was(namespace: Namespace, templates: Path, kept: bool) -> None:
    """Editors empty a file before they write it; that moment must not empty the table."""
    base = templates / "base.nft.j2"
    good = base.read_text()
    source = Speaking(*WEB, SIX)
    with running(source, templates) as journal:
        eventually(lambda: {result.family for result in journal.results} == {V4, V6})
        before = namespace.run("nft", "list", "table", "ip", "kube-proxy")
        save(base, good[: good.index("map service-ips")] if kept else "")
        source.sink.apply([service_cidr("10.96.0.0/16")])
        eventually(lambda: len(journal.failures) > 2)
        failing(journal, V4)
        assert "base.nft.j2: declares no " in str(journal.failures[0][1])
        assert namespace.run("nft", "list", "table", "ip", "kube-proxy") == before
        save(base, good)
        eventually(lambda: "10.96.0.0/16" in namespace.run("nft", "list", "table", "ip", "kube-proxy"))


@pytest.mark.usefixtures("_no_grace")
def test_fault_that_shows_only_when_chains_are_deleted_leaves_them_and_stops_nothing_else(
    namespace: Namespace, templates: Path
) -> None:
    transaction = templates / "transaction.nft.j2"
    good = transaction.read_text()
    broken = good.replace("delete chain {{ ip }}", "delete chain {{ no_such_word }}")
    assert broken != good
    transaction.write_text(broken)
    source = Speaking(*WEB, SIX)

    def chains() -> str:
        return namespace.run("nft", "list", "chains", "ip")

    with running(source, templates) as journal:
        eventually(lambda: {result.family for result in journal.results} == {V4, V6})
        source.sink.apply([gone("Service", "web")])
        eventually(lambda: len(journal.tidying_failures) > 1)
        assert all(isinstance(error, TemplateError) for error in journal.tidying_failures)
        source.sink.apply([service("late", 9), service("late-six", 7, family=V6)])
        eventually(lambda: holds(namespace, "cluster-ips", "10.96.0.9"))
        eventually(lambda: holds(namespace, "cluster-ips", "fd00:96::7", V6))
        assert not holds(namespace, "cluster-ips", "10.96.0.10")
        assert "/web/" in chains()
        save(transaction, good)
        source.sink.apply([service_cidr("10.96.0.0/16")])  # templates are read anew with the rules of the base
        eventually(lambda: "/web/" not in chains())
    assert journal.failures == []
