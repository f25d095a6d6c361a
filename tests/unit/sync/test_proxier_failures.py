"""When the kernel refuses, or its answer is lost: nothing is forgotten, and the next sync starts from what it holds."""

import re
from collections.abc import Callable

import pytest

from nodeproxy.kernel.errors import BusyError, KernelError, OutcomeUnknownError, TooLongError, TransactionError
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Change

from .support import Once, Table, endpoints, expected, gone, run, service, sticky, view

pytestmark = pytest.mark.usefixtures("namespace")

V4 = Family.IPV4

REFUSALS = {
    "refused": TransactionError("File exists", owner="ns/a"),
    "busy": BusyError("Device or resource busy"),
    "lost": OutcomeUnknownError("No buffer space available"),
}
CHANGES: dict[str, list[Change]] = {
    "endpoints": [endpoints("a", [1, 5])],
    "deletion": [gone("Service", "a"), gone("EndpointSlice", "a-1")],
    "new service": [service("c", 3), endpoints("c", [7, 8])],
    "affinity": [sticky("a", 1, 50)],
    "node port": [service("a", 1, type="NodePort", ports=[{"port": 80, "nodePort": 30001}])],
}


def table() -> Table:
    found = Table(service("a", 1), endpoints("a", [1, 2, 3]), sticky("b", 2), endpoints("b", [1, 2]))
    found.sync()
    return found


def always(error: Exception) -> Callable[[str], None]:
    def fail(_: str) -> None:
        raise error

    return fail


@pytest.mark.parametrize("changes", CHANGES.values(), ids=list(CHANGES))
@pytest.mark.parametrize("applied", [False, True], ids=["not applied", "applied"])
@pytest.mark.parametrize("error", REFUSALS.values(), ids=list(REFUSALS))
def test_change_whose_transaction_failed_is_made_good_in_the_same_sync(
    error: TransactionError, applied: bool, changes: list[Change]
) -> None:
    """Whatever the error says: what counts is what the kernel holds, and that is read back."""
    found = table()
    once = Once(error)
    if applied:
        found.nft.after = once
    else:
        found.nft.before = once
    found.sync(*changes)
    assert once.spent
    assert found.last.full
    found.tidy()
    assert view(V4) == expected(found)
    assert found.again().sync() == []


@pytest.mark.parametrize("changes", CHANGES.values(), ids=list(CHANGES))
def test_change_is_not_forgotten_while_the_kernel_refuses_everything(changes: list[Change]) -> None:
    """Failed syncs raise; later changes come on top; the first sync that succeeds applies all of it."""
    found = table()
    held = view(V4)
    found.nft.before = always(TransactionError("No"))
    for more in (changes, [service("d", 4), endpoints("d", [4])], []):
        with pytest.raises(TransactionError):
            found.sync(*more)
        assert view(V4) == held
        assert found.proxier.tidy_due() is None
    found.nft.before = lambda _: None
    found.sync()
    found.tidy()
    assert view(V4) == expected(found)
    assert found.again().sync() == []


@pytest.mark.parametrize("applied", [False, True], ids=["not applied", "applied"])
def test_first_sync_whose_answer_was_lost_is_made_good(applied: bool) -> None:
    found = Table(service("a", 1), endpoints("a", [1, 2, 3]))
    once = Once(OutcomeUnknownError("No buffer space available"))
    if applied:
        found.nft.after = once
    else:
        found.nft.before = once
    found.sync()
    assert once.spent
    assert view(V4) == expected(found)
    assert found.again().sync() == []


def test_answers_that_are_always_lost_are_an_error_and_not_a_loop() -> None:
    found = Table(service("a", 1), endpoints("a", [1, 2, 3]))
    calls = []

    def lose(text: str) -> None:
        calls.append(text)
        raise OutcomeUnknownError("No buffer space available")

    found.nft.before = lose
    with pytest.raises(OutcomeUnknownError):
        found.sync()
    assert len(calls) == 2


@pytest.mark.parametrize("error", REFUSALS.values(), ids=list(REFUSALS))
@pytest.mark.parametrize("applied", [False, True], ids=["not applied", "applied"])
def test_failure_of_tidying_is_reported_and_made_good_by_the_next_sync(error: TransactionError, applied: bool) -> None:
    found = table()
    found.sync(gone("Service", "a"), endpoints("b", [3, 4]))
    due = found.proxier.tidy_due()
    assert due is not None
    found.clock.time = due
    once = Once(error)
    if applied:
        found.nft.after = once
    else:
        found.nft.before = once
    assert not found.proxier.tidy(), "whoever called it has to ask for a sync"
    assert found.journal.tidying_failures == [error]
    assert found.proxier.tidy_due() is None
    found.sync()
    assert found.last.full
    found.tidy()
    assert view(V4) == expected(found)


def test_tidying_that_went_well_or_had_nothing_to_do_asks_for_nothing() -> None:
    found = Table(service("a", 1), endpoints("a", [1, 2, 3]))
    assert found.proxier.tidy(), "nothing is known of the kernel yet"
    found.sync()
    assert found.proxier.tidy()
    found.sync(gone("Service", "a"))
    due = found.proxier.tidy_due()
    assert due is not None
    found.clock.time = due
    assert found.proxier.tidy()
    assert found.journal.tidying_failures == []


def test_error_in_the_middle_of_many_pieces_leaves_a_state_that_the_next_sync_completes() -> None:
    """From the sixth piece on the kernel takes nothing: five are in it, and what they hold is not written again."""
    found = Table(*many(120))
    counted: list[str] = []

    def refuse_sixth(text: str) -> None:
        refuse_above(6000)(text)
        counted.append(text)
        if len(counted) >= 6:
            raise TransactionError("No")

    found.nft.before = refuse_sixth
    with pytest.raises(TransactionError):
        found.sync()
    first = set(re.findall(r"add chain ip kube-proxy (\S*ns/s\S+) #", "".join(found.nft.taken())))
    found.nft.before = refuse_above(6000)
    then = set(re.findall(r"add chain ip kube-proxy (\S*ns/s\S+) #", "".join(found.sync())))
    assert first
    assert then
    assert not first & then
    found.tidy()
    assert view(V4) == expected(found)


# --- too long for one message ----------------------------------------------------------------------------------------


def many(count: int) -> list[Change]:
    return [
        change
        for number in range(count)
        for change in (service(f"s{number}", number + 1), endpoints(f"s{number}", [1, 2, 3, number % 50 + 4]))
    ]


def refuse_above(limit: int) -> Callable[[str], None]:
    def check(text: str) -> None:
        if len(text) > limit:
            raise TooLongError("Message too long")

    return check


@pytest.mark.parametrize("limit", [6000, 10_000, 40_000])
def test_pieces_are_halved_until_they_pass(limit: int) -> None:
    found = Table(*many(100))
    found.nft.before = refuse_above(limit)
    texts = found.sync()
    assert len(texts) > 1
    assert found.last.transactions == len(texts)
    assert max(map(len, texts)) <= limit
    assert view(V4) == expected(found)
    found.nft.before = lambda _: None
    assert found.again().sync() == []


def test_pieces_put_nothing_into_force_before_what_it_needs() -> None:
    """After each piece, every dispatch element leads to a chain that has its rules, and slots that are filled."""
    found = Table(*many(60))
    found.nft.before = refuse_above(6000)

    def look(_: str) -> None:
        held = view(V4)
        for _, verdict in held.get("map service-ips", (None, []))[1]:
            ((rule,),) = (held[f"chain {verdict['goto']['target']}"][1],)
            assert len(rule[-1]["dnat"]["addr"]["map"]) == 4

    found.nft.after = look
    texts = found.sync()
    assert len(texts) > 5


def test_change_of_many_services_is_halved_as_well() -> None:
    found = Table(*many(60))
    found.sync()
    found.nft.before = refuse_above(4000)
    texts = found.sync(*(endpoints(f"s{number}", [8, 9]) for number in range(60)))
    assert len(texts) > 1
    assert not found.last.full
    found.tidy()
    assert view(V4) == expected(found)


def test_service_port_with_a_statement_that_cannot_be_cut_is_left_out_and_changes_nothing() -> None:
    found = table()
    held = view(V4)
    found.nft.before = refuse_above(40)
    found.sync(endpoints("a", [7]))
    assert {str(name) for name in found.proxier.refused()} == {"ns/a"}
    assert view(V4) == held
    found.nft.before = lambda _: None
    found.clock.time = found.proxier.full_sync_due()
    found.sync()
    found.tidy()
    assert view(V4) == expected(found)


def test_more_endpoints_than_a_shared_map_holds_get_a_map_of_their_own() -> None:
    slices = [endpoints("big", range(1, 250), name=f"big-{port}", port=port) for port in range(8000, 8005)]
    found = Table(service("big", 9), *slices)
    found.sync()
    assert re.search(r"numgen random mod 1245 map @endpoints-tcp-\d", run("nft", "list", "table", "ip", "kube-proxy"))
    assert view(V4) == expected(found)
    assert found.again().sync() == []


def test_permission_that_is_gone_is_an_error_of_its_own() -> None:
    found = table()
    found.nft.before = always(KernelError("permission"))
    with pytest.raises(KernelError):
        found.sync(endpoints("a", [9]))
    found.nft.before = lambda _: None
    found.sync()
    found.tidy()
    assert view(V4) == expected(found)
