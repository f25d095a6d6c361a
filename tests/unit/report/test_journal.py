"""The log: one line per event, none while nothing happens, and every line can be read by a machine."""

import contextlib
import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import structlog

from nodeproxy.kernel.errors import Refusal, TransactionError
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Problem
from nodeproxy.model.frontends import Clash, Frontend
from nodeproxy.model.service import ServicePortName
from nodeproxy.report.journal import Journal, SyncResult
from nodeproxy.report.logs import configure_logs
from unit.report.restored_logs import restored_logs

__all__ = ["restored_logs"]

V4, V6 = Family.IPV4, Family.IPV6


class Log:
    """What has been written to standard error."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    def lines(self) -> list[str]:
        """Lines since the last call."""
        found = self.stream.getvalue().splitlines()
        self.stream.seek(0)
        self.stream.truncate()
        return found

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines()]


@pytest.fixture
def log() -> Iterator[Log]:
    found = Log()
    with contextlib.redirect_stderr(found.stream):
        configure_logs("json")
        yield found


@pytest.fixture
def journal(log: Log) -> Journal:
    return Journal()


def named(service: str, port: str = "") -> ServicePortName:
    return ServicePortName("ns", service, port, "TCP")


def result(**values: Any) -> SyncResult:
    base: dict[str, Any] = {
        "family": V4,
        "full": False,
        "services": 5,
        "changed": (named("web"),),
        "transactions": 1,
        "seconds": 0.01234,
    }
    return SyncResult(**{**base, **values})


def clash(port: int, *losers: str) -> Clash:
    return Clash(
        Frontend("192.0.2.1", "TCP", port),
        named("winner"),
        tuple(named(loser) for loser in losers),
    )


def problem(reason: str, *, fatal: bool = False) -> Problem:
    return Problem("shop.yaml#1", "Service ns/web", "spec.ports[0].port", reason, fatal)


def test_sync_that_wrote_something_is_one_line(log: Log, journal: Journal) -> None:
    journal.synced(result())
    (event,) = log.events()
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "event": "synced",
        "level": "info",
        "family": "IPv4",
        "full": False,
        "services": 5,
        "changed": 1,
        "names": ["ns/web"],
        "transactions": 1,
        "milliseconds": 12.3,
    }


def test_sync_names_the_first_five_that_changed_and_counts_all(log: Log, journal: Journal) -> None:
    journal.synced(result(changed=[named(f"s{number}", "http") for number in range(7)]))
    (event,) = log.events()
    assert event["changed"] == 7
    assert event["names"] == [f"ns/s{number}:http" for number in range(5)]
    assert event["more"] == 2, "so that nobody takes the names for all"


def test_full_sync_names_nobody(log: Log, journal: Journal) -> None:
    """It looks at all of them, whoever changed."""
    journal.synced(result(full=True))
    (event,) = log.events()
    assert {"changed", "names"} & event.keys() == set()


def test_first_sync_of_a_family_is_a_line_even_if_nothing_had_to_be_written(log: Log, journal: Journal) -> None:
    """So that one sees that it is in force; later ones that had nothing to do are silent."""
    quiet = {"full": True, "transactions": 0, "changed": ()}
    for family in (V4, V6):
        journal.synced(result(family=family, **quiet))
        (event,) = log.events()
        assert (event["event"], event["level"], event["family"]) == ("in step", "info", family.label)
    for family in (V4, V6):
        journal.synced(result(family=family, **quiet))
        assert log.lines() == []
    journal.synced(result())
    assert [event["event"] for event in log.events()] == ["synced"]


def test_sync_that_had_nothing_to_do_is_a_debug_line_when_asked_for() -> None:
    log = Log()
    with contextlib.redirect_stderr(log.stream):
        configure_logs("json", verbose=True)
        journal = Journal()
        for _ in range(2):
            journal.synced(result(transactions=0, changed=()))
    assert [(event["event"], event["level"]) for event in log.events()] == [("in step", "info"), ("in step", "debug")]


def test_takeover_says_why(log: Log, journal: Journal) -> None:
    journal.synced(result(full=True, took_over="none of its rules is ours"))
    (event,) = log.events()
    assert event["took_over"] == "none of its rules is ours"


def test_failure_names_who_is_at_fault_and_when_it_is_tried_again(log: Log, journal: Journal) -> None:
    """The Service and the statement that the kernel refused are in the line (B04)."""
    error = TransactionError("File exists", owner="ns/web:http", statement="add element ...")
    journal.failed(V6, error, 30.0)
    (event,) = log.events()
    assert event["level"] == "error"
    assert event["event"] == "sync failed"
    assert (event["family"], event["owner"], event["statement"]) == ("IPv6", "ns/web:http", "add element ...")
    assert event["retry_seconds"] == 30.0
    assert "File exists" in event["error"]
    assert event["kind"] == "TransactionError"


def test_recovery_is_a_line_even_if_nothing_had_to_be_written(log: Log, journal: Journal) -> None:
    for family in (V4, V6):
        journal.synced(result(family=family))
    journal.failed(V4, TransactionError("No"), 30.0)
    log.lines()
    journal.synced(result(family=V6, transactions=0))
    assert log.lines() == [], "the other family did not fail"
    journal.synced(result(transactions=0))
    assert [(event["event"], event["level"]) for event in log.events()] == [("in step", "info")]
    journal.synced(result(transactions=0))
    assert log.lines() == []


def test_recovery_that_had_to_write_is_over_after_its_line(log: Log, journal: Journal) -> None:
    journal.synced(result())
    journal.failed(V4, TransactionError("No"), 30.0)
    journal.synced(result(transactions=1))
    log.lines()
    journal.synced(result(transactions=0))
    assert log.lines() == []


def test_failure_of_tidying_is_a_warning(log: Log, journal: Journal) -> None:
    journal.tidying_failed(V4, TransactionError("busy"))
    (event,) = log.events()
    assert (event["level"], event["family"], event["error"]) == ("warning", "IPv4", "busy")


def test_problem_is_a_line_when_it_comes_and_one_when_it_goes(log: Log, journal: Journal) -> None:
    journal.problems([problem("99999 is no port"), problem("bad", fatal=True)])
    events = log.events()
    assert [(event["event"], event["level"], event["reason"]) for event in events] == [
        ("input problem", "warning", "99999 is no port"),
        ("input problem", "warning", "bad"),
    ]
    assert {event["object"] for event in events} == {"Service ns/web"}
    assert {event["origin"] for event in events} == {"shop.yaml#1"}
    assert {event["field"] for event in events} == {"spec.ports[0].port"}
    assert "effect" not in events[0], "the rest of the object counts"
    assert events[1]["effect"] == "left out"
    journal.problems([problem("bad", fatal=True), problem("99999 is no port")])
    assert log.lines() == []
    journal.problems([problem("bad", fatal=True), problem("new")])
    assert [(event["event"], event["level"], event["reason"]) for event in log.events()] == [
        ("input problem", "warning", "new"),
        ("input problem gone", "info", "99999 is no port"),
    ]
    journal.problems([])
    assert [(event["event"], event["reason"]) for event in log.events()] == [
        ("input problem gone", "bad"),
        ("input problem gone", "new"),
    ]
    journal.problems([])
    assert log.lines() == []


def test_problem_says_what_stays_in_force_and_is_no_other_when_nothing_does(log: Log, journal: Journal) -> None:
    journal.problems([replace(problem("bad", fatal=True), kept=True)])
    (event,) = log.events()
    assert event["effect"] == "left out; what was there before stays in force"
    journal.problems([problem("bad", fatal=True)])
    assert log.lines() == []


def test_problems_that_are_gone_are_lines_in_the_order_of_documents(log: Log, journal: Journal) -> None:
    found = [Problem(f"shop.yaml#{number}", "", "kind", "is missing") for number in range(1, 13)]
    journal.problems(found)
    log.lines()
    journal.problems([])
    assert [event["origin"] for event in log.events()] == [each.origin for each in found]


def test_clash_is_a_line_when_it_is_new_or_other_per_family(log: Log, journal: Journal) -> None:
    journal.clashes(V4, [clash(80, "a")])
    (event,) = log.events()
    assert event["level"] == "warning"
    assert (event["frontend"], event["winner"], event["losers"]) == ("192.0.2.1:80/TCP", "ns/winner", ["ns/a"])
    journal.clashes(V4, [clash(80, "a")])
    assert log.lines() == []
    journal.clashes(V4, [clash(80, "a"), clash(81, "b")])
    assert [event["frontend"] for event in log.events()] == ["192.0.2.1:81/TCP"]
    journal.clashes(V6, [clash(80, "a")])
    assert [event["family"] for event in log.events()] == ["IPv6"]


def test_clash_that_is_gone_is_a_line_per_family(log: Log, journal: Journal) -> None:
    for family in (V4, V6):
        journal.clashes(family, [clash(80, "a"), clash(81, "b")])
    log.lines()
    journal.clashes(V4, [clash(80, "other")])
    events = log.events()
    assert [(event["event"], event["level"], event["family"], event["frontend"]) for event in events] == [
        ("frontend claimed twice", "warning", "IPv4", "192.0.2.1:80/TCP"),
        ("frontend no longer claimed twice", "info", "IPv4", "192.0.2.1:81/TCP"),
    ], "what only has another loser is not gone"
    journal.clashes(V4, [])
    assert [(event["event"], event["frontend"]) for event in log.events()] == [
        ("frontend no longer claimed twice", "192.0.2.1:80/TCP")
    ]
    journal.clashes(V4, [])
    assert log.lines() == []
    journal.clashes(V4, [clash(80, "a")])
    assert [event["event"] for event in log.events()] == ["frontend claimed twice"]


def test_service_port_whose_slices_are_for_other_ports_is_a_line_when_it_is_new(log: Log, journal: Journal) -> None:
    web = {named("web", "http"): ("web TCP", "metrics TCP")}
    journal.unmatched(V4, web)
    (event,) = log.events()
    assert (event["event"], event["level"], event["family"]) == ("service port has no endpoints", "warning", "IPv4")
    assert (event["service"], event["endpoints_are_for"]) == ("ns/web:http", "web TCP, metrics TCP")
    journal.unmatched(V4, web)
    assert log.lines() == []
    journal.unmatched(V6, web)
    assert [event["family"] for event in log.events()] == ["IPv6"]
    journal.unmatched(V4, {**web, named("api"): ("grpc TCP",)})
    assert [event["service"] for event in log.events()] == ["ns/api"]
    journal.unmatched(V4, {**web, named("api"): ("http TCP",)})
    assert [event["endpoints_are_for"] for event in log.events()] == ["http TCP"]


def test_service_port_that_loses_its_endpoints_again_is_a_line_again(log: Log, journal: Journal) -> None:
    unmatched = {named("web"): ("http TCP",)}
    journal.unmatched(V4, unmatched)
    log.lines()
    journal.unmatched(V4, {})
    assert log.lines() == []
    journal.unmatched(V4, unmatched)
    assert [event["service"] for event in log.events()] == ["ns/web"]


def test_hints_that_are_not_used_are_a_line_when_that_is_new(log: Log, journal: Journal) -> None:
    web = {named("web"): "some ready endpoints have no zone hint"}
    journal.ignored_hints(V4, web)
    (event,) = log.events()
    assert (event["event"], event["level"], event["family"]) == ("topology hints ignored", "info", "IPv4")
    assert (event["service"], event["reason"]) == ("ns/web", "some ready endpoints have no zone hint")
    journal.ignored_hints(V4, web)
    assert log.lines() == []
    journal.ignored_hints(V6, web)
    assert [event["family"] for event in log.events()] == ["IPv6"]
    journal.ignored_hints(V4, {named("web"): "this node's zone is not known"})
    assert [event["reason"] for event in log.events()] == ["this node's zone is not known"]
    journal.ignored_hints(V4, {})
    assert log.lines() == []
    journal.ignored_hints(V4, web)
    assert [event["service"] for event in log.events()] == ["ns/web"]


def test_advice_is_a_line_when_it_is_new_and_one_when_it_no_longer_holds(log: Log, journal: Journal) -> None:
    journal.advice(iter(["two", "one"]))
    assert [(event["event"], event["level"], event["reason"]) for event in log.events()] == [
        ("check this", "warning", "one"),
        ("check this", "warning", "two"),
    ]
    journal.advice(["one", "two"])
    assert log.lines() == []
    journal.advice(["two", "three"])
    assert [(event["event"], event["level"], event["reason"]) for event in log.events()] == [
        ("check this", "warning", "three"),
        ("no longer so", "info", "one"),
    ]
    journal.advice([])
    assert [(event["event"], event["reason"]) for event in log.events()] == [
        ("no longer so", "three"),
        ("no longer so", "two"),
    ]
    journal.advice(["one"])
    assert [(event["event"], event["reason"]) for event in log.events()] == [("check this", "one")]


def test_every_line_is_json_whatever_is_in_it(log: Log, journal: Journal) -> None:
    awkward = 'quote " backslash \\ new\nline tab\t é 漢 \x00 \u2028'
    journal.event("started", node=awkward)
    journal.problems([problem(awkward)])
    journal.failed(V4, ValueError(awkward), 1.0)
    logging.getLogger("library").warning("says %s", awkward)
    lines = log.stream.getvalue().rstrip("\n").split("\n")
    assert len(lines) == 4
    events = [json.loads(line) for line in lines]
    assert events[0]["node"] == awkward
    assert events[1]["reason"] == awkward
    assert events[2]["error"] == awkward
    assert events[3]["event"] == f"says {awkward}"
    assert all({"timestamp", "level", "event"} <= event.keys() for event in events)


def test_text_lines_are_one_per_event_and_begin_with_time_and_level() -> None:
    found = Log()
    with contextlib.redirect_stderr(found.stream):
        configure_logs("text")
        Journal().event("started", node="with\nnewline", number=3)
        logging.getLogger("library").warning("hello")
        logging.getLogger("library").info("too quiet to be heard")
    lines = found.lines()
    assert len(lines) == 2
    assert lines[0].startswith("timestamp='")
    assert "level='info' event='started'" in lines[0]
    assert "number=3" in lines[0]
    assert "level='warning' event='hello'" in lines[1]


@pytest.mark.parametrize(("verbose", "expected"), [(False, 0), (True, 1)])
def test_debug_lines_are_written_only_if_asked_for(verbose: bool, expected: int) -> None:
    found = Log()
    with contextlib.redirect_stderr(found.stream):
        configure_logs("json", verbose=verbose)
        structlog.get_logger("x").debug("detail")
    assert len(found.lines()) == expected


def test_nothing_goes_to_standard_output(journal: Journal, capfd: pytest.CaptureFixture[str]) -> None:
    journal.event("started")
    journal.failed(V4, ValueError("x"), 1.0)
    assert capfd.readouterr().out == ""


def test_refused_service_port_is_one_line_when_it_is_refused_and_one_when_it_no_longer_is(
    log: Log, journal: Journal
) -> None:
    """Not one at each sync; another reason is news."""
    web, api = named("web", "http"), named("api")
    first = {web: Refusal("ns/web:http", "File exists", "add rule x"), api: Refusal("ns/api", "No such file")}
    journal.refused(V4, first)
    lines = log.events()
    assert [(line["event"], line["level"], line["service"]) for line in lines] == [
        ("service port refused", "error", "ns/web:http"),
        ("service port refused", "error", "ns/api"),
    ]
    assert (lines[0]["family"], lines[0]["reason"], lines[0]["statement"]) == ("IPv4", "File exists", "add rule x")
    journal.refused(V4, first)
    assert log.events() == []
    assert dict(journal.refusals(V4)) == first
    assert dict(journal.refusals(V6)) == {}
    journal.refused(V4, {api: Refusal("ns/api", "Invalid argument")})
    lines = log.events()
    assert [(line["event"], line["service"], line["level"]) for line in lines] == [
        ("service port refused", "ns/api", "error"),
        ("service port no longer refused", "ns/web:http", "info"),
    ]
    journal.refused(V6, {})
    assert log.events() == []
    assert [*journal.refusals(V4)] == [api]


def test_thousands_of_refused_service_ports_are_a_few_lines_and_a_count(log: Log, journal: Journal) -> None:
    journal.refused(V4, {named(f"s{number}"): Refusal(f"ns/s{number}", "No") for number in range(5000)})
    lines = log.events()
    assert len(lines) == 21
    assert (lines[-1]["event"], lines[-1]["more"]) == ("service port refused", 4980)
    assert len(journal.refusals(V4)) == 5000
    journal.refused(V4, {})
    lines = log.events()
    assert len(lines) == 21
    assert (lines[-1]["event"], lines[-1]["more"]) == ("service port no longer refused", 4980)


def test_sync_that_leaves_service_ports_out_counts_them(log: Log, journal: Journal) -> None:
    journal.synced(result(refused=7))
    (event,) = log.events()
    assert event["refused"] == 7
    assert event["level"] == "warning", "not all that should be is in force"
