"""The proxy of one family against a real kernel: it writes what changed, and only that."""

import re
from collections.abc import Callable

import pytest

from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Change
from nodeproxy.model.service import ServicePortName
from nodeproxy.model.settings import ProxySettings
from nodeproxy.ruleset.diff import CHAIN_GRACE, SLOT_GRACE

from .support import (
    NODE,
    Table,
    endpoints,
    expected,
    gone,
    listing,
    node,
    run,
    service,
    service_cidr,
    shop,
    statements,
    sticky,
    view,
)

pytestmark = pytest.mark.usefixtures("namespace")

V4, V6 = Family.IPV4, Family.IPV6

families = pytest.mark.parametrize("family", [V4, V6])


# --- what is written -------------------------------------------------------------------------------------------------


@families
@pytest.mark.parametrize("chains", ["WhenAffinity", "Always"])
def test_first_sync_writes_it_all_and_the_next_nothing(family: Family, chains: str) -> None:
    table = Table(
        *shop(family),
        family=family,
        settings=ProxySettings(cluster_cidrs=("10.244.0.0/16", "fd00:244::/64"), endpoint_chains=chains),
    )
    assert len(table.sync()) == 1
    assert table.last.full
    assert table.last.services == 7
    held = view(family)
    assert len(held["map service-ips"][1]) == 7
    assert table.sync() == []
    assert not table.last.full
    assert view(family) == held


@families
@pytest.mark.parametrize("protocol", ["TCP", "UDP", "SCTP"])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("make", [service, sticky])
def test_every_form_of_rule_loads(family: Family, protocol: str, count: int, make: Callable[..., Change]) -> None:
    """In both families, for each protocol, number of endpoints and with affinity: nft takes it (B10)."""
    table = Table(
        make("web", family=family, ports=[{"port": 80, "protocol": protocol}]),
        endpoints("web", range(1, count + 1), family=family, protocol=protocol),
        family=family,
    )
    table.sync()
    shown = listing(family)
    for host in range(1, count + 1):
        assert re.search(rf"{'10.244.0.' if family is V4 else 'fd00:244::'}{host}\b", shown)
    assert ("goto reject-chain" in shown) == (count == 0)


def test_partial_sync_writes_only_what_changed() -> None:
    table = Table(*shop())
    table.sync()
    (text,) = table.sync(endpoints("many", [1, 2, 3, 4]))
    chains = set(re.findall(r"(?:service|local|external|endpoint)-\w{8}-(\S+)", text))
    assert {chain.partition("__")[0] for chain in chains} == {"ns/many/tcp/"}
    assert set(re.findall(r"^(add chain .*?)(?: \{.*)? # ns/many$", text, re.MULTILINE)) <= {
        f"add chain ip kube-proxy {name}"
        for name in re.findall(r"^flush chain ip kube-proxy (\S+)", text, re.MULTILINE)
    }, "no other chain than before"
    assert table.last.changed == (ServicePortName("ns", "many", "", "TCP"),)
    assert view(V4) == expected(table)


def test_sync_tells_every_service_port_that_changed_and_no_other() -> None:
    table = Table(*shop())
    table.sync()
    table.sync(gone("Service", "one"), endpoints("many", [1, 2, 4]), endpoints("remote", [7, 6], node="node-b"))
    assert [name.service for name in table.last.changed] == ["many", "one"]
    table.sync()
    assert table.last.changed == ()


def test_port_whose_slices_have_another_name_is_told_until_it_is_put_right() -> None:
    """A slice for port ``web`` serves nothing of a Service whose port is called ``http``."""
    web = ServicePortName("ns", "web", "http", "TCP")
    table = Table(service("web", ports=[{"name": "http", "port": 80}]), endpoints("web", [1], port_name="web"))
    assert table.journal.last_unmatched == {web: ("web TCP",)}
    table.sync(endpoints("web", [1], port_name="http"))
    assert table.journal.last_unmatched == {}


def test_endpoints_that_replace_others_take_their_slots_or_fresh_ones() -> None:
    """Where deleting makes libnftables read all chains, a change deletes nothing: that is done later."""
    written: dict[bool, set[str]] = {}
    for refill in (True, False):
        table = Table(service("web"), endpoints("web", [1, 2], node="node-b"), refill=refill)
        table.sync()
        lines = statements(table.sync(endpoints("web", [2, 3], node="node-b")))
        written[refill] = {" ".join(words[:2]) for line in lines if (words := line.split())[0].isalpha()}
        table.tidy()
        assert view(V4) == expected(table)
        run("nft", "delete", "table", "ip", "kube-proxy")
    assert written == {True: {"delete element", "add map"}, False: {"flush chain", "add chain", "add map"}}


def test_endpoint_that_replaces_the_only_one_rewrites_one_rule() -> None:
    table = Table(service("web"), endpoints("web", [1], node="node-b"))
    table.sync()
    written = statements(table.sync(endpoints("web", [2], node="node-b")))
    assert [line.split()[0:2] for line in written] == [["flush", "chain"], ["add", "chain"]]
    assert "dnat to 10.244.0.2:" in written[1]


def test_change_that_changes_no_rule_writes_nothing() -> None:
    table = Table(*shop())
    table.sync()
    assert table.sync(endpoints("many", [3, 2, 1]), service("one", 2)) == []


@families
def test_every_change_leads_where_a_fresh_start_would(family: Family) -> None:
    """After each of a series of changes, with and without tidying, and nothing is left over in the end."""
    table = Table(*shop(family), family=family)
    table.sync()
    steps = [
        [endpoints("none", [1, 2], family=family)],
        [endpoints("many", [3], family=family), endpoints("one", [], family=family)],
        [gone("Service", "sticky"), sticky("sticky-one", 5, 200, family=family)],
        [sticky("sticky", 4, family=family), endpoints("sticky-one", [4, 5, 6], family=family)],
        [service("many", 8, family=family), gone("Service", "balanced"), endpoints("remote", [6], family=family)],
        [gone("Service", name) for name in ("none", "one", "many", "sticky", "sticky-one", "remote")],
    ]
    for number, step in enumerate(steps):
        table.sync(*step)
        if number % 2:
            table.tidy()
            assert view(family) == expected(table)
    assert not any("/" in name for name in view(family))
    assert "@endpoint" not in listing(family)
    assert "map endpoint" not in listing(family)
    assert table.again().sync() == []


def test_service_that_comes_back_before_its_chains_are_deleted_keeps_them() -> None:
    """The chain of a Service that went is deleted two seconds later, unless it is in use again by then (B02)."""
    table = Table(service("web"), endpoints("web", [1, 2]))
    table.sync()
    table.sync(gone("Service", "web"))
    table.clock.time += 0.5
    table.sync(service("web"))
    table.tidy()
    assert view(V4) == expected(table)
    assert table.journal.tidying_failures == []


def test_what_goes_out_of_use_is_emptied_at_once_and_deleted_later() -> None:
    table = Table(service("web"), endpoints("web", [1, 2]))
    table.sync()
    before = table.clock.time
    table.sync(gone("Service", "web"))
    (chain,) = (name for name in view(V4) if "/" in name)
    assert view(V4)[chain][1] == []
    assert view(V4)["map service-ips"][1] == []
    due = table.proxier.tidy_due()
    assert due is not None
    assert due > before
    table.tidy()
    assert chain not in view(V4)
    assert table.proxier.tidy_due() is None


@pytest.mark.parametrize(
    ("changes", "grace"),
    [
        ([gone("Service", "one")], CHAIN_GRACE),
        ([endpoints("many", [7, 8])], SLOT_GRACE),
        ([gone("Service", "many")], SLOT_GRACE),
    ],
    ids=["chain", "slots", "both"],
)
@pytest.mark.parametrize("restarted", [False, True], ids=["partial", "full"])
def test_grace_of_what_goes_out_of_use_counts_from_when_the_change_was_applied(
    changes: list[Change], grace: float, restarted: bool
) -> None:
    """Packets may be on their way through the old rules until the last piece is applied, however long that takes."""
    table = Table(*shop())
    table.sync()
    table.tidy()
    taken = table.cluster.apply(*changes)
    if restarted:
        table = table.again()
    else:
        table.proxier.update(taken.services)
    asked = table.clock.time

    def slow(_: str) -> None:
        table.clock.time += 30.0

    table.nft.after = slow
    table.proxier.sync()
    assert table.nft.taken() != []
    assert table.last.full == restarted
    assert table.clock.time >= asked + 30.0
    assert table.proxier.tidy_due() == table.clock.time + grace
    table.clock.time += grace - 0.01
    table.proxier.tidy()
    assert table.nft.taken() == []


def test_loser_of_a_clash_takes_over_in_the_transaction_in_which_the_winner_leaves() -> None:
    shared = {"externalIPs": ["198.51.100.7"]}
    table = Table(
        service("old", 11, created="2023-01-01T00:00:00Z", **shared),
        service("young", 10, **shared),
        endpoints("old", [1]),
        endpoints("young", [2]),
    )
    table.sync()
    key = '{"concat": ["198.51.100.7", "tcp", 80]}'
    assert "ns/old/" in dict(view(V4)["map service-ips"][1])[key]["goto"]["target"]
    assert len(table.journal.last_clashes) == 1
    assert len(table.sync(gone("Service", "old"))) == 1
    assert "ns/young/" in dict(view(V4)["map service-ips"][1])[key]["goto"]["target"]
    assert table.journal.last_clashes == ()


def test_two_services_exchange_their_addresses_in_one_transaction() -> None:
    table = Table(service("a", 1), service("b", 2), endpoints("a", [1]), endpoints("b", [2]))
    table.sync()
    assert len(table.sync(service("a", 2), service("b", 1))) == 1
    assert view(V4) == expected(table)


# --- surroundings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "moved",
    [
        [node(zone="zone-a")],
        [node(addresses=["203.0.113.5"])],
        [service_cidr("10.96.0.0/12")],
        [gone("ServiceCIDR", "kubernetes", "")],
        [gone("Node", NODE, "")],
    ],
    ids=["zone", "address", "service cidr", "no service cidr", "no node"],
)
def test_surroundings_are_followed(moved: list[Change]) -> None:
    table = Table(*shop())
    table.sync()
    table.move(*moved)
    table.sync()
    assert not table.last.full
    table.tidy()
    assert view(V4) == expected(table)


def test_pod_cidr_of_the_node_is_followed() -> None:
    table = Table(*shop(), settings=ProxySettings(detect_local_mode="NodeCIDR"))
    table.sync()
    table.move(node(pod_cidrs=["10.244.7.0/24"]))
    table.sync()
    assert "ip saddr != 10.244.7.0/24" in listing(V4)
    assert view(V4) == expected(table)


def test_new_address_of_an_interface_writes_one_element() -> None:
    table = Table(*shop(), settings=ProxySettings(node_port_addresses=("198.18.0.0/15", "192.0.2.0/24")))
    table.sync()
    table.move(present=["192.0.2.1", "198.18.0.9"])
    (text,) = table.nft.taken() or table.sync()
    assert re.findall(r"^add \w+", text, re.MULTILINE) == ["add set"]
    assert "198.18.0.9," in text
    assert [key for key, _ in view(V4)["set nodeport-ips"][1]] == ['"192.0.2.1"', '"198.18.0.9"']
    table.move(present=["198.18.0.9"])
    table.sync()
    assert [key for key, _ in view(V4)["set nodeport-ips"][1]] == ['"198.18.0.9"']


# --- restart and full sync -------------------------------------------------------------------------------------------


@families
def test_restart_writes_nothing(family: Family) -> None:
    table = Table(*shop(family), family=family)
    table.sync()
    table.sync(endpoints("many", [2, 3, 4], family=family), gone("Service", "one"))
    table.tidy()
    later = table.again()
    assert later.sync() == []
    assert later.last.full
    assert later.last.transactions == 0
    assert later.sync() == []


def test_restart_before_tidying_removes_what_was_left_to_tidy() -> None:
    table = Table(*shop())
    table.sync()
    table.sync(endpoints("many", [5, 6]), gone("Service", "sticky"))
    later = table.again()
    later.sync()
    later.tidy()
    assert view(V4) == expected(later)
    assert later.again().sync() == []


def test_world_that_changed_meanwhile_is_corrected_with_few_writes() -> None:
    table = Table(*shop())
    table.sync()
    table.cluster.apply(endpoints("many", [1, 2]), gone("Service", "one"), service("new", 9), endpoints("new", [9]))
    later = table.again()
    texts = later.sync()
    touched = {name for text in texts for name in re.findall(r"ns/([a-z-]+)/tcp", text)}
    assert touched == {"many", "one", "new"}
    assert len(texts) <= 2
    later.tidy()
    assert view(V4) == expected(later)


def test_hourly_full_sync_writes_nothing_where_nothing_differs() -> None:
    table = Table(*shop())
    table.sync()
    table.clock.time += 3599
    table.sync()
    assert not table.last.full
    table.clock.time += 1
    assert table.sync() == []
    assert table.last.full
    table.clock.time += 10
    table.sync()
    assert not table.last.full


def test_full_sync_is_due_an_hour_after_the_last_full_one_whatever_came_between() -> None:
    table = Table(*shop())
    assert table.proxier.full_sync_due() <= table.clock.time + 3600
    table.sync()
    due = table.clock.time + 3600
    assert table.proxier.full_sync_due() == due
    table.clock.time += 3500
    table.sync(endpoints("many", [1, 2]))
    assert not table.last.full
    assert table.proxier.full_sync_due() == due
    table.clock.time = due
    table.sync()
    assert table.last.full
    assert table.proxier.full_sync_due() == due + 3600


def test_clients_that_stick_survive_a_restart_and_a_correction() -> None:
    table = Table(sticky("web"), endpoints("web", [1, 2]))
    table.sync()
    (name, *_) = sorted(key.removeprefix("set ") for key in view(V4) if key.startswith("set affinity-"))
    run("nft", "add", "element", "ip", "kube-proxy", name, "{ 10.244.0.99 timeout 90s }")
    assert table.again().sync() == []
    run("nft", "flush", "chain", "ip", "kube-proxy", "services")
    later = table.again()
    assert later.sync(endpoints("web", [1, 2, 3])) != []
    assert "10.244.0.99" in run("nft", "list", "set", "ip", "kube-proxy", name)
    assert view(V4).keys() == expected(later).keys()


def test_changed_affinity_timeout_keeps_the_clients() -> None:
    table = Table(sticky("web", seconds=100), endpoints("web", [1, 2]))
    table.sync()
    (name, *_) = sorted(key.removeprefix("set ") for key in view(V4) if key.startswith("set affinity-"))
    run("nft", "add", "element", "ip", "kube-proxy", name, "{ 10.244.0.99 timeout 90s }")
    table.sync(sticky("web", seconds=300))
    shown = run("nft", "list", "set", "ip", "kube-proxy", name)
    assert "timeout 5m" in shown
    assert "10.244.0.99" in shown
    assert table.again().sync() == []
