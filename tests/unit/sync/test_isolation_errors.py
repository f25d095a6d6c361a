"""Each error of nft and the kernel: what may pass never leaves a service port out, what can't pass leaves out one.

The answers are libnftables' own, as recorded, put between it and the program; all else goes to a real kernel.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeproxy.kernel import nft as seam
from nodeproxy.kernel.errors import BusyError, KernelError, PermissionDeniedError, Refusal
from nodeproxy.kernel.nft import Nft
from nodeproxy.model.service import ServicePortName
from nodeproxy.ruleset.diff import CHAIN_GRACE
from nodeproxy.ruleset.operations import AddChain, AddRule, Piece, RemoveChain, Rule
from nodeproxy.sync.isolation import Applier
from unit.ruleset.build import renderer

from .support import V4, Cluster, Table, endpoints, expected, gone, node, run, service, view

pytestmark = pytest.mark.usefixtures("namespace")

MAY_PASS = {
    "EBUSY": "Could not process rule: Device or resource busy",
    "EINTR": "Could not process rule: Interrupted system call",
    "EAGAIN": "Could not process rule: Resource temporarily unavailable",
    "ENOBUFS": "Could not process rule: No buffer space available",
    "EMSGSIZE": "Could not process rule: Message too long",
}
CAN_NOT_PASS = {
    "ENOENT": "Could not process rule: No such file or directory",
    "EEXIST": "Could not process rule: File exists",
    "EINVAL": "Could not process rule: Invalid argument",
    "ERANGE": "Could not process rule: Numerical result out of range",
    "ENFILE": "Could not process rule: Too many open files in system",
    "EOPNOTSUPP": "Could not process rule: Operation not supported",
    "ELOOP": "Could not process rule: Too many levels of symbolic links",
    "comment": "comment too long, 128 characters maximum allowed",
    "type": "datatype mismatch, expected IPv4 address, expression has type integer",
}


class Faulty:
    """A libnftables context that refuses some transactions.

    Args:
        real: the context for all others.
        fault: the line (from 0) and the message, for a text that is refused; None for any other.
        located: whether it says which line it is.
    """

    def __init__(self, real: Any, fault: Callable[[str], tuple[int, str] | None], *, located: bool) -> None:
        self._real, self._fault, self._located = real, fault, located

    def cmd(self, text: str) -> tuple[int, str, str]:
        return self._answer(text, "<cmdline>") or self._real.cmd(text)

    def cmd_from_file(self, path: str) -> tuple[int, str, str]:
        return self._answer(Path(path).read_text(), path) or self._real.cmd_from_file(path)

    def _answer(self, text: str, place: str) -> tuple[int, str, str] | None:
        fault = self._fault(text)
        if fault is None:
            return None
        line, message = fault
        where = f"{place}:{line + 1}:1-3" if self._located else "netlink"
        return -1, "", f"{where}: Error: {message}\n{text.splitlines()[line]}\n^^^\n"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Faults:
    """Makes every new context a faulty one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fault: Callable[[str], tuple[int, str] | None] = lambda _: None
        self.located = True
        make = seam._new_context
        monkeypatch.setattr(seam, "_new_context", lambda: Faulty(make(), self.find, located=self.located))

    def find(self, text: str) -> tuple[int, str] | None:
        """What is refused of a text now."""
        return self.fault(text)

    def always(self, word: str, message: str, *, located: bool) -> None:
        """Refuse whatever holds a word, in the line that holds it."""

        def find(text: str) -> tuple[int, str] | None:
            lines = [number for number, line in enumerate(text.splitlines()) if word in line]
            return (lines[0], message) if lines else None

        self.located, self.fault = located, find

    def times(self, count: int, word: str, message: str, *, located: bool) -> None:
        """The same, so many times."""
        self.always(word, message, located=located)
        left, find = count, self.fault

        def counted(text: str) -> tuple[int, str] | None:
            nonlocal left
            found = find(text)
            if found is None or not left:
                return None
            left -= 1
            return found

        self.fault = counted


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def table() -> Table:
    changes = [
        change
        for number in range(1, 8)
        for change in (service(f"s{number}", number), endpoints(f"s{number}", range(1, number + 1)))
    ]
    return Table(*changes)


def refused(found: Table) -> set[str]:
    return {name.service for name in found.proxier.refused()}


@pytest.mark.parametrize("located", [True, False], ids=["named", "not named"])
@pytest.mark.parametrize("known", [True, False], ids=["partial sync", "first sync"])
@pytest.mark.parametrize("error", MAY_PASS)
def test_what_may_pass_leaves_nobody_out_when_it_happens_once(
    faults: Faults, error: str, known: bool, located: bool
) -> None:
    found = table()
    if known:
        found.sync()
    faults.times(1, "# ns/s3", MAY_PASS[error], located=located)
    found.nft._context = None
    found.sync(endpoints("s3", [8, 9]), endpoints("s5", [7]))
    assert refused(found) == set()
    found.tidy()
    assert view(V4) == expected(found)


@pytest.mark.parametrize("located", [True, False], ids=["named", "not named"])
@pytest.mark.parametrize("known", [True, False], ids=["partial sync", "first sync"])
@pytest.mark.parametrize("error", CAN_NOT_PASS)
def test_what_cannot_pass_leaves_out_one_and_all_others_are_served(
    faults: Faults, error: str, known: bool, located: bool
) -> None:
    found = table()
    if known:
        found.sync()
        held = view(V4)
    faults.always("# ns/s3", CAN_NOT_PASS[error], located=located)
    found.nft._context = None
    found.sync(endpoints("s3", [8, 9]), endpoints("s5", [7]))
    assert refused(found) == {"s3"}
    (refusal,) = found.proxier.refused().values()
    assert refusal.reason == CAN_NOT_PASS[error]
    found.tidy()
    now = view(V4)
    chains = [key for key in now if "/s3/" in key]
    if known:
        assert chains
        assert all(now[key] == held[key] for key in chains)
    else:
        assert chains == []
    faults.fault = lambda _: None
    found.clock.time = found.proxier.full_sync_due()
    found.sync()
    assert refused(found) == set()
    found.tidy()
    assert view(V4) == expected(found)


def test_what_stays_busy_leaves_out_whose_it_is_if_that_is_named(faults: Faults) -> None:
    found = table()
    found.sync()
    faults.always("# ns/s3", MAY_PASS["EBUSY"], located=True)
    found.nft._context = None
    found.sync(endpoints("s3", [8, 9]), endpoints("s5", [7]))
    assert refused(found) == {"s3"}


@pytest.mark.parametrize("error", ["EBUSY", "EINTR", "EAGAIN"])
def test_what_stays_busy_without_a_name_is_an_error_and_nobody_is_left_out(faults: Faults, error: str) -> None:
    """It may pass; the next sync tries all of it again."""
    found = table()
    found.sync()
    faults.always("# ns/s3", MAY_PASS[error], located=False)
    found.nft._context = None
    with pytest.raises(BusyError):
        found.sync(endpoints("s3", [8, 9]), endpoints("s5", [7]))
    assert refused(found) == set()
    faults.fault = lambda _: None
    found.sync()
    found.tidy()
    assert view(V4) == expected(found)


def test_answer_that_is_always_lost_is_an_error_and_nobody_is_left_out(faults: Faults) -> None:
    found = table()
    faults.always("# ns/s3", MAY_PASS["ENOBUFS"], located=True)
    with pytest.raises(KernelError):
        found.sync()
    assert refused(found) == set()


@pytest.mark.parametrize("located", [True, False], ids=["named", "not named"])
def test_missing_permission_is_an_error_and_nobody_is_left_out(faults: Faults, located: bool) -> None:
    found = table()
    faults.always("# ns/s3", "Could not process rule: Operation not permitted", located=located)
    with pytest.raises(PermissionDeniedError):
        found.sync()
    assert refused(found) == set()


def test_error_of_what_is_nobodys_stops_the_sync_and_leaves_nobody_out(faults: Faults) -> None:
    found = table()
    faults.always("nat-prerouting", CAN_NOT_PASS["EINVAL"], located=True)
    with pytest.raises(KernelError, match="Invalid argument"):
        found.sync()
    assert refused(found) == set()


@pytest.mark.parametrize("located", [True, False], ids=["named", "not named"])
def test_two_that_are_refused_only_together_are_told_apart_by_leaving_out_one(faults: Faults, located: bool) -> None:
    found = table()

    def clash(text: str) -> tuple[int, str] | None:
        lines = text.splitlines()
        of = [[number for number, line in enumerate(lines) if f"# ns/{name}" in line] for name in ("s2", "s6")]
        return (of[1][0], CAN_NOT_PASS["EEXIST"]) if all(of) else None

    faults.located, faults.fault = located, clash
    run("nft", "-f", "-", text="table ip kube-proxy { chain mine { type filter hook input priority 0 ; accept ; } ; }")
    texts = found.sync()
    assert found.last.took_over
    assert refused(found) == {"s6"}
    assert sum("delete table" in text for text in texts) == 1
    found.tidy()
    assert "/s2/" in run("nft", "list", "chains", "ip")
    assert "/s6/" not in run("nft", "list", "chains", "ip")


def test_remains_that_cannot_be_deleted_are_tried_ever_more_seldom_and_keep_no_others(faults: Faults) -> None:
    found = table()
    found.sync()
    (stuck,) = re.findall(r"chain (\S+/s3/\S+) {", run("nft", "list", "chains", "ip"))
    found.sync(gone("Service", "s3"), gone("Service", "s4"))
    faults.always(f"delete chain ip kube-proxy {stuck}", MAY_PASS["EBUSY"], located=True)
    found.nft._context = None
    pauses: list[float] = []
    for _ in range(6):
        due = found.proxier.tidy_due()
        assert due is not None
        pauses.append(due - found.clock.time)
        found.clock.time = max(found.clock.time, due)
        while found.proxier.tidy() and found.proxier.tidy_due() is not None:
            found.clock.time = max(found.clock.time, found.proxier.tidy_due() or 0.0)
        found.sync()
    assert found.journal.tidying_failures
    assert pauses[-1] > 8 * pauses[0]
    chains = run("nft", "list", "chains", "ip")
    assert stuck in chains
    assert "/s4/" not in chains, "the other one is gone"
    faults.fault = lambda _: None
    found.tidy()
    assert view(V4) == expected(found)


def test_remains_that_could_not_be_deleted_are_left_alone_until_they_are_due_again(faults: Faults) -> None:
    """Also when somebody asks earlier, as the other family's table does."""
    found = table()
    found.sync()
    found.sync(gone("Service", "s3"))
    faults.always("delete chain", MAY_PASS["EBUSY"], located=True)
    found.nft._context = None
    for _ in range(8):
        due = found.proxier.tidy_due()
        assert due is not None
        found.clock.time = max(found.clock.time, due)
        if not found.proxier.tidy():
            found.sync()
    failures = len(found.journal.tidying_failures)
    later = found.proxier.tidy_due()
    assert later is not None
    found.clock.time += CHAIN_GRACE + 0.1
    assert later > found.clock.time
    assert found.proxier.tidy()
    assert len(found.journal.tidying_failures) == failures
    assert found.proxier.tidy_due() == later
    faults.fault = lambda _: None
    found.tidy()
    assert view(V4) == expected(found)


# --- the parts, on their own -----------------------------------------------------------------------------------------


def test_errors_are_all_named_at_once() -> None:
    """Of a transaction in which several statements are refused, nft names each."""
    nft, made = Nft(), renderer()
    nft.run(made.transaction([AddChain("", "a/1")]))
    rules = [AddRule(f"ns/s{number}", "a/1", Rule(f"goto missing-{number}", "", "aaaaaaaa")) for number in range(30)]
    applier = Applier(nft, made)
    applier.apply([Piece(switch=[[rule] for rule in rules])])
    assert set(applier.refused) == {f"ns/s{number}" for number in range(30)}
    assert applier.refused["ns/s7"].statement.startswith("add chain ip kube-proxy a/1 { goto missing-7 ")
    assert applier.transactions == 0


def test_statement_that_is_not_complete_is_told_from_the_one_after_it() -> None:
    """nft points at the line in which it notices."""
    nft, made = Nft(), renderer()
    nft.run(made.transaction([AddChain("", "a/1")]))
    texts = ["drop", "meta mark { 1, 2", "accept", "drop"]
    rules = [AddRule(f"ns/s{number}", "a/1", Rule(text, "", "aaaaaaaa")) for number, text in enumerate(texts)]
    applier = Applier(nft, made)
    applier.apply([Piece(prepare=[*rules])])
    assert set(applier.refused) == {"ns/s1"}
    assert applier.transactions == 1


def test_removal_of_what_is_nobodys_waits_while_somebody_is_left_out() -> None:
    """It may still be in use by what stays of the one that is left out."""
    nft, made = Nft(), renderer()
    nft.run(made.transaction([AddChain("", "a/1"), AddChain("", "a/2")]))
    bad = AddRule("ns/bad", "a/1", Rule("goto missing", "", "aaaaaaaa"))
    applier = Applier(nft, made)
    applier.apply([Piece(switch=[[bad]]), Piece(switch=[[RemoveChain("", "a/2")]])])
    assert set(applier.refused) == {"ns/bad"}
    assert "a/2" in run("nft", "list", "chains", "ip")


def test_service_port_that_cannot_be_rendered_keeps_its_first_reason() -> None:
    applier = Applier(Nft(), renderer())
    name = ServicePortName("ns", "web", "http", "TCP")
    applier.refuse(name, ValueError("first"))
    applier.refuse(name, ValueError("second"))
    assert applier.refused == {"ns/web:http": Refusal("ns/web:http", "first")}


def test_cluster_with_nothing_refused_reports_nothing() -> None:
    found = Table(cluster=Cluster(node()))
    found.sync()
    assert found.proxier.refused() == {}
    assert found.last.refused == 0
