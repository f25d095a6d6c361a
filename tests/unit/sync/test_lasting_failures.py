"""A sync that fails again and again leaves no more in the kernel than one that failed once."""

import json
from collections.abc import Iterator

import pytest

from nodeproxy.kernel.errors import TransactionError
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Change
from nodeproxy.ruleset import diff

from .support import Table, endpoints, expected, listing, service, view

pytestmark = pytest.mark.usefixtures("namespace")

V4 = Family.IPV4
SERVICES = 20
SWITCH = " : goto service-"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of few Services is cut as one of thousands is: slots are filled before anything is put into force."""
    monkeypatch.setattr(diff, "PIECE_WEIGHT", 40)


def many(turn: int) -> Iterator[Change]:
    """Services, with other endpoints each turn, and one more every other turn, so that they need fresh slots."""
    for number in range(SERVICES):
        yield service(f"s{number}", number + 10)
        yield endpoints(f"s{number}", [turn * 10 + host for host in range(1, 6 + turn % 2)])


def slot_maps() -> dict[str, int]:
    """How many slots each slot map in the kernel has filled."""
    found = [item["map"] for item in json.loads(listing(V4, "-j"))["nftables"] if "map" in item]
    return {body["name"]: len(body.get("elem", ())) for body in found if body["name"].startswith("endpoint")}


def fail(table: Table, *changes: Change) -> dict[str, int]:
    """A sync that fails when all slots have been filled, as nothing is taken then; what is in the slot maps."""
    refusing = False

    def refuse(text: str) -> None:
        nonlocal refusing
        refusing = refusing or SWITCH in text
        if refusing:
            raise TransactionError("No")

    table.nft.before = refuse
    with pytest.raises(TransactionError, match="No"):
        table.sync(*changes)
    return slot_maps()


@pytest.mark.parametrize("changing", [False, True], ids=["the same each time", "other endpoints each time"])
@pytest.mark.parametrize("fresh", [False, True], ids=["known table", "first sync"])
def test_slots_do_not_pile_up_while_every_sync_fails(fresh: bool, changing: bool) -> None:
    table = Table(service("a", 1), endpoints("a", [1, 2, 3]))
    if not fresh:
        table.sync()
    found = [fail(table, *many(turn if changing else 0)) for turn in range(8)]
    filled = [sum(maps.values()) for maps in found]
    assert filled[0] >= SERVICES * 5, "slots were filled before it failed"
    assert max(filled) <= SERVICES * (5 + 6) + 3, "at most those of the last time, and of this one"
    assert max(filled[4:]) <= max(filled[:4])
    assert len(found[-1]) <= len(found[1]), "nor do maps"
    table.nft.before = lambda _: None
    table.sync()
    table.tidy()
    assert view(V4) == expected(table)
    assert sum(slot_maps().values()) == SERVICES * (6 if changing else 5) + 3
    assert table.again().sync() == []


def test_slots_that_a_chain_draws_from_stay_while_every_sync_fails() -> None:
    """What is served goes on being served as it was, by slots that nobody empties meanwhile."""
    table = Table(*many(0))
    table.sync()
    held = view(V4)
    table.nft.before = lambda text: (_ for _ in ()).throw(TransactionError("No")) if "flush chain" in text else None
    for turn in range(1, 7):
        with pytest.raises(TransactionError, match="No"):
            table.sync(*many(turn))
        table.proxier.tidy()
        assert view(V4) == held
    assert sum(slot_maps().values()) <= SERVICES * (5 + 6 + 5)
    table.nft.before = lambda _: None
    table.sync()
    table.tidy()
    assert view(V4) == expected(table)
    assert sum(slot_maps().values()) == SERVICES * 5
