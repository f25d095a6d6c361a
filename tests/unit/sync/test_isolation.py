"""A service port whose rules nft or the kernel refuses is left out and named; all others are served in the same sync.

The refusals are real: copies of the templates spoil the rules of chosen Services.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nodeproxy.kernel.errors import TransactionError
from nodeproxy.kube.source import Change
from nodeproxy.model.settings import ProxySettings

from .spoiling import RULES, WAYS, mend, spoil
from .support import V4, V6, Cluster, Family, Table, endpoints, expected, gone, node, run, service, sticky, view

pytestmark = pytest.mark.usefixtures("namespace")

OLD, NEW, LAST = [1, 2], [2, 3], [4]
ALWAYS = ProxySettings(cluster_cidrs=("10.244.0.0/16", "fd00:244::/64"), endpoint_chains="Always")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "templates"


def some(count: int, family: Family = V4) -> Iterator[Change]:
    """Services of several forms, named ``s0`` and so on."""
    for number in range(count):
        name = f"s{number}"
        make = sticky if number % 3 == 1 else service
        yield make(name, number + 1, family=family)
        yield endpoints(name, range(1, number % 4 + 1), family=family)


def refused(table: Table) -> set[str]:
    """The Services that are left out."""
    return {name.service for name in table.proxier.refused()}


def without(names: Collection[str], *changes: Change) -> Sequence[Change]:
    """What a source says when some Services are not there."""
    return [change for change in changes if change.key.name.removesuffix("-1") not in names]


def served(*changes: Change, like: Table) -> dict[str, Any]:
    """What the table holds when these objects are all there are, and nothing is spoilt."""
    return expected(Table(cluster=Cluster(node(), *changes), family=like.family, settings=like.settings))


@pytest.mark.parametrize("settings", [None, ALWAYS], ids=["chains with affinity", "chains always"])
@pytest.mark.parametrize("family", [V4, V6], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_spoilt_services_are_named_and_all_others_are_served(
    folder: Path, way: str, family: Family, settings: ProxySettings | None
) -> None:
    if family is V6 and way == "missing set":
        pytest.skip("as for IPv4: the statement is one of that family")
    names, changes = {"s3", "s7"}, list(some(12, family))
    table = Table(*changes, family=family, settings=settings, templates=spoil(folder, way, names))
    table.sync()
    assert refused(table) == names
    assert table.last.refused == 2
    assert table.last.services == 10
    for name, refusal in table.proxier.refused().items():
        assert refusal.owner == str(name)
        assert refusal.reason
    table.tidy()
    assert view(family) == served(*without(names, *changes), like=table)
    assert table.sync() == [], "nothing is tried again before something changes"
    assert refused(table) == names


def test_seven_of_a_thousand_are_named_each_spoilt_in_its_own_way(folder: Path) -> None:
    """The rest is in the table, and no more than a few transactions are needed beyond those of a clean load."""
    changes: list[Change] = []
    for number in range(1000):
        name = f"svc-{number:05}"
        changes += [service(name, clusterIP=f"10.96.{number // 250}.{number % 250 + 1}"), endpoints(name, range(1, 6))]
    names = {f"svc-{number:05}": way for number, way in zip(range(42, 1000, 140), RULES, strict=False)}
    assert len(names) == 7
    mend(folder)
    balancing = folder / "balancing.nft.j2"
    for name, way in names.items():
        guard = f"{{%- if '/{name}/' in chain.name %}}"
        balancing.write_text(f"{balancing.read_text()}\n{guard}\n{RULES[way]}\n{{%- endif %}}\n")
    table = Table(*changes, templates=folder)
    table.sync()
    assert refused(table) == set(names)
    listing = run("nft", "list", "map", "ip", "kube-proxy", "service-ips")
    there = set(re.findall(r"ns/(svc-\d+)/tcp", listing))
    assert len(there) == 993
    assert not there & set(names)
    assert table.last.transactions <= 2 * 8 + 8


@pytest.mark.parametrize("way", RULES)
def test_what_a_refused_service_had_stays_until_it_is_taken_again(folder: Path, way: str) -> None:
    """Through changes, full syncs and restarts; a change that is taken, or a mended template, ends it."""
    changes = list(some(6))
    table = Table(*changes)
    table.sync()
    held = view(V4)
    spoil(folder, way, {"s3", "s4"})
    table = Table(cluster=table.cluster, templates=folder)
    table.cluster.apply(endpoints("s3", NEW), endpoints("s4", NEW), endpoints("s5", [9]))
    for _ in range(3):  # restarts
        table = table.again()
        table.sync()
        table.tidy()
        assert refused(table) == {"s3", "s4"}
        now = view(V4)
        assert {key for key in held if held[key] != now.get(key)} <= {key for key in held if "/s5/" in key} | {
            "set hairpin-connections"
        }
        assert {key: value for key, value in now.items() if "/s3/" in key or "/s4/" in key} == {
            key: value for key, value in held.items() if "/s3/" in key or "/s4/" in key
        }
    table.sync(endpoints("s3", LAST), service("s9", 99))
    table.tidy()
    assert refused(table) == {"s3", "s4"}
    if way != "statement for another hook":  # which shows only when it is applied
        assert not table.last.full, "a change that would be refused again costs no look at the whole table"
    assert view(V4)["map service-ips"] == now["map service-ips"]
    assert all(view(V4)[key] == held[key] for key in held if "/s3/" in key or "/s4/" in key)
    mend(folder)
    table.clock.time = table.proxier.full_sync_due()
    table.sync()
    assert refused(table) == set()
    table.tidy()
    assert view(V4) == expected(table)
    assert table.again().sync() == []


@pytest.mark.parametrize(
    "way", ["unknown statement", "missing chain", "statement for another hook", "value that is not there"]
)
def test_change_that_is_refused_leaves_the_old_rules_and_the_next_one_is_taken(folder: Path, way: str) -> None:
    """In one run, by partial syncs: the first refusal makes it look at the whole table."""
    spoil(folder, way, {"s2"}, when="chain.targets[0].address == '10.244.0.66'")
    table = Table(*some(5), templates=folder)
    table.sync()
    assert refused(table) == set()
    held = view(V4)
    table.sync(endpoints("s2", [66]), endpoints("s0", [7]))
    assert refused(table) == {"s2"}
    table.tidy()
    now = view(V4)
    assert all(now[key] == held[key] for key in held if "/s2/" in key)
    assert now["map service-ips"] != held["map service-ips"], "the other one has its endpoint"
    table.sync(endpoints("s2", [66, 67]))
    assert refused(table) == {"s2"}
    table.sync(endpoints("s2", [67, 68, 69]))
    assert refused(table) == set()
    assert not table.last.full
    table.tidy()
    assert view(V4) == expected(table)
    assert table.again().sync() == []


def test_refused_service_that_is_deleted_leaves_nothing(folder: Path) -> None:
    table = Table(*some(5))
    table.sync()
    table = Table(cluster=table.cluster, templates=spoil(folder, "missing chain", {"s1", "s2"}))
    table.cluster.apply(endpoints("s1", NEW), endpoints("s2", NEW))
    table = table.again()
    table.sync()
    assert refused(table) == {"s1", "s2"}
    table.sync(gone("Service", "s1"), gone("Service", "s2"))
    assert refused(table) == set()
    table.tidy()
    assert "/s1/" not in run("nft", "list", "table", "ip", "kube-proxy")
    assert view(V4) == expected(table)


def test_service_without_endpoints_stays_rejected_while_its_new_rules_are_refused(folder: Path) -> None:
    """The element that says so leads to no chain of its own."""
    table = Table(*some(3), service("empty", 50))
    table.sync()
    table = Table(cluster=table.cluster, templates=spoil(folder, "missing chain", {"empty"}))
    table.cluster.apply(endpoints("empty", OLD))
    for _ in range(2):
        table = table.again()
        table.sync()
        table.tidy()
        assert refused(table) == {"empty"}
        assert "10.96.0.50 . tcp . 80" in run("nft", "list", "map", "ip", "kube-proxy", "no-endpoint-services")
        assert "10.96.0.50 " in run("nft", "list", "set", "ip", "kube-proxy", "cluster-ips").replace(",", " ")


@pytest.mark.parametrize("taker_refused", [False, True], ids=["from the refused one", "to the refused one"])
def test_frontend_that_moves(folder: Path, taker_refused: bool) -> None:
    """One that leaves a refused service is its new owner's; one that it would get leads nowhere any more."""
    address = ["198.51.100.7"]
    giver, taker = ("other", "spoilt") if taker_refused else ("spoilt", "other")
    table = Table(
        service(giver, 1, externalIPs=address), endpoints(giver, OLD), service(taker, 2), endpoints(taker, LAST)
    )
    table.sync()
    table = Table(cluster=table.cluster, templates=spoil(folder, "missing chain", {"spoilt"}))
    table.cluster.apply(endpoints("spoilt", NEW))
    table.cluster.apply(service(giver, 1), service(taker, 2, externalIPs=address))
    table = table.again()
    for turn in range(2):
        table.sync()
        table.tidy()
        assert refused(table) == {"spoilt"}
        content = dict(view(V4)["map service-ips"][1])
        keys = [key for key in content if "198.51.100.7" in key]
        if taker_refused:
            assert keys == [], turn
        else:
            assert ["/other/" in content[key]["goto"]["target"] for key in keys] == [True], turn
        table.clock.time = table.proxier.full_sync_due()
    mend(folder)
    table.sync()
    table.tidy()
    assert view(V4) == expected(table)


def test_frontend_taken_from_a_refused_service_in_a_partial_sync_stays_with_its_new_owner(folder: Path) -> None:
    table = Table(service("spoilt", 1, externalIPs=["198.51.100.7"]), endpoints("spoilt", OLD), service("other", 2))
    table.sync(endpoints("other", LAST))
    table = Table(cluster=table.cluster, templates=spoil(folder, "missing chain", {"spoilt"}))
    table.cluster.apply(endpoints("spoilt", NEW))
    table = table.again()
    table.sync()
    assert refused(table) == {"spoilt"}
    table.sync(service("spoilt", 1), service("other", 2, externalIPs=["198.51.100.7"]))
    table.sync(gone("Service", "spoilt"))
    table.tidy()
    assert view(V4) == expected(table)


def test_when_all_of_many_are_refused_that_is_said_once_and_nothing_changes(folder: Path) -> None:
    """It is not the Services' fault then."""
    table = Table(*some(12))
    table.sync()
    held = view(V4)
    every = [f"s{number}" for number in range(12)] + ["late"]
    table = Table(cluster=table.cluster, templates=spoil(folder, "missing chain", every))
    table.cluster.apply(*(endpoints(f"s{number}", [7, 8]) for number in range(12)))
    table = table.again()
    with pytest.raises(TransactionError, match=r"all 12 service ports are refused; the first one: ns/s\d+: "):
        table.sync()
    assert refused(table) == set()
    assert table.proxier.tidy_due() is None
    now = view(V4)
    assert all(now[key] == held[key] for key in held if "service-" in key or key.startswith("map "))


def test_half_of_many_that_are_refused_are_left_out_one_by_one(folder: Path) -> None:
    """More than nft names at once."""
    names = {f"s{number}" for number in range(1, 120, 2)}
    for way in ("unknown statement", "missing chain"):
        table = Table(*some(120), templates=spoil(folder, way, names))
        table.sync()
        assert refused(table) == names, way
        table.tidy()
        assert view(V4) == served(*without(names, *some(120)), like=table)
        run("nft", "delete", "table", "ip", "kube-proxy")


def test_takeover_leaves_a_refused_service_out_of_its_one_transaction(folder: Path) -> None:
    run("nft", "-f", "-", text="table ip kube-proxy { chain mine { type filter hook input priority 0 ; accept ; } ; }")
    for way in WAYS:
        names = {"s2", "s5"}
        table = Table(*some(8), templates=spoil(folder, way, names))
        texts = table.sync()
        assert table.last.took_over, way
        assert refused(table) == names, way
        assert sum("delete table" in text for text in texts) == 1
        table.tidy()
        assert view(V4) == served(*without(names, *some(8)), like=table)
        run("nft", "delete", "table", "ip", "kube-proxy")
        text = "table ip kube-proxy { chain mine { type filter hook input priority 0 ; accept ; } ; }"
        run("nft", "-f", "-", text=text)


def test_templates_that_are_being_edited_do_not_hide_who_is_refused(folder: Path) -> None:
    """Rules are tried apart with the templates as they are now; what is in use goes on working meanwhile."""
    spoil(folder, "statement for another hook", {"s2"}, when="chain.targets[0].address == '10.244.0.66'")
    table = Table(*some(40), templates=folder)
    table.sync()
    balancing = folder / "balancing.nft.j2"
    balancing.write_text(balancing.read_text() + "{% if half of a st")
    table.sync(*(endpoints(f"s{number}", [66, 67]) for number in range(40)))
    assert refused(table) == {"s2"}
