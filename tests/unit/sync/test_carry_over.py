"""Clients with affinity stay with their endpoints when the table is made anew; comments name who has an element."""

import json

import pytest

from nodeproxy.kube.addresses import Family

from .support import TABLE_FAMILY, Table, endpoints, run, service, sticky
from .test_takeover import OURS_OTHERWISE

pytestmark = pytest.mark.usefixtures("namespace")


def affinity_sets(family: Family) -> dict[str, dict[str, int]]:
    """Clients and the seconds they stay, by set."""
    listed = json.loads(run("nft", "-j", "list", "table", TABLE_FAMILY[family], "kube-proxy"))["nftables"]
    return {
        entry["set"]["name"]: {item["elem"]["val"]: item["elem"]["expires"] for item in entry["set"].get("elem", ())}
        for entry in listed
        if entry.get("set", {}).get("name", "").startswith("affinity-")
    }


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("count", [1, 3, 1200])
def test_clients_outlive_a_table_that_is_made_anew(family: Family, count: int) -> None:
    """The old table is not ours: none of its rules has a digest. Its affinity sets have kube-proxy's names."""
    table = Table(sticky("b", 2, seconds=100, family=family), endpoints("b", [1, 2], family=family), family=family)
    table.sync()
    ip = TABLE_FAMILY[family]
    first, second = sorted(affinity_sets(family))
    make = {Family.IPV4: lambda i: f"100.64.{i >> 8}.{i & 255}", Family.IPV6: lambda i: f"2001:db8::{i:x}"}[family]
    names = [make(i) for i in range(1, count + 1)]
    elements = ", ".join(f"{name} expires 40s" for name in names)
    run("nft", "-f", "-", text=f"add element {ip} kube-proxy {first} {{ {elements} }}\n")
    for chain in ("filter-prerouting-pre-dnat", "services", "nat-output"):
        run("nft", "flush", "chain", ip, "kube-proxy", chain)
    # Another priority can't be mended in place, so the table has to be made anew.
    run(
        "nft",
        "-f",
        "-",
        text=f"flush chain {ip} kube-proxy nat-postrouting\ndelete chain {ip} kube-proxy nat-postrouting\n"
        f"add chain {ip} kube-proxy nat-postrouting {{ type nat hook postrouting priority 99 ; }}\n",
    )
    later = table.again()
    assert len(later.sync()) == 1
    assert later.last.took_over
    found = affinity_sets(family)
    assert set(found) == {first, second}
    assert sorted(found[first]) == sorted(names)
    assert all(20 <= seconds <= 40 for seconds in found[first].values())
    assert found[second] == {}


def test_clients_stay_no_longer_than_the_new_timeout() -> None:
    table = Table(sticky("b", 2, seconds=1000), endpoints("b", [1, 2]))
    table.sync()
    first, _ = sorted(affinity_sets(Family.IPV4))
    run("nft", "add", "element", "ip", "kube-proxy", first, "{ 203.0.113.7 }")
    run("nft", "-f", "-", text=OURS_OTHERWISE["priority of a hook"])
    later = table.again()
    later.sync(sticky("b", 2, seconds=60))
    assert later.last.took_over
    assert 30 <= affinity_sets(Family.IPV4)[first]["203.0.113.7"] <= 60


def test_clients_of_endpoints_that_are_gone_are_left_behind() -> None:
    table = Table(sticky("b", 2), endpoints("b", [1, 2]))
    table.sync()
    for name in affinity_sets(Family.IPV4):
        run("nft", "add", "element", "ip", "kube-proxy", name, "{ 203.0.113.7 }")
    run("nft", "-f", "-", text=OURS_OTHERWISE["priority of a hook"])
    later = table.again()
    later.sync(endpoints("b", [2]))
    (clients,) = affinity_sets(Family.IPV4).values()
    assert list(clients) == ["203.0.113.7"]


def test_element_that_passes_to_another_service_is_commented_with_its_name() -> None:
    """Both have no endpoints, so the verdict is the same; a reader of the map must find who it is now."""
    older = service("older", 1, created="2020-01-01T00:00:00Z", externalIPs=["192.0.2.9"])
    younger = service("younger", 2, created="2021-01-01T00:00:00Z", externalIPs=["192.0.2.9"])
    table = Table(older, younger)
    table.sync()
    get = ("nft", "get", "element", "ip", "kube-proxy", "no-endpoint-services", "{ 192.0.2.9 . tcp . 80 }")
    assert 'comment "ns/older"' in run(*get)
    table.sync(service("older", 1, created="2020-01-01T00:00:00Z"))
    assert 'comment "ns/younger"' in run(*get)
    assert table.sync() == []


@pytest.mark.parametrize("family", list(Family))
def test_set_with_an_element_that_matches_everything_costs_the_others_no_client(family: Family) -> None:
    """Such an element has no key. nft takes one for any set, and whoever has it may have it first."""
    table = Table(sticky("b", 2, family=family), endpoints("b", [1, 2], family=family), family=family)
    table.sync()
    ip, client = TABLE_FAMILY[family], {Family.IPV4: "203.0.113.7", Family.IPV6: "2001:db8::7"}[family]
    first, second = sorted(affinity_sets(family))
    address = {Family.IPV4: "ipv4_addr", Family.IPV6: "ipv6_addr"}[family]
    for name in ("affinity-22222222-ns/x/tcp/__1/1", "affinity-ZZZZZZZZ-ns/x/tcp/__1/1"):
        run(
            "nft", "add", "set", ip, "kube-proxy", name, f"{{ type {address} ; flags dynamic,timeout ; timeout 99s ; }}"
        )
        run("nft", "add", "element", ip, "kube-proxy", name, "{ * }")
    run("nft", "add", "element", ip, "kube-proxy", first, f"{{ {client} }}")
    run("nft", "add", "element", ip, "kube-proxy", second, f"{{ *, {client} }}")
    run("nft", "-f", "-", text=OURS_OTHERWISE["priority of a hook"].replace("ip kube-proxy", f"{ip} kube-proxy"))
    later = table.again()
    later.sync()
    assert later.last.took_over
    assert {name: list(clients) for name, clients in affinity_sets(family).items()} == {
        first: [client],
        second: [client],
    }
