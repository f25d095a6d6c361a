"""What others do to our table is undone by a full sync, and their own tables are left alone."""

import re

import pytest

from netns.namespaces import Namespace
from nodeproxy.kube.addresses import Family

from .support import TABLE_FAMILY, Cluster, Table, endpoints, expected, gone, listing, run, shop, statements, view

pytestmark = pytest.mark.usefixtures("namespace")

V4, V6 = Family.IPV4, Family.IPV6

families = pytest.mark.parametrize("family", [V4, V6])


_FOREIGN = {
    "empty chain": "add chain ip kube-proxy foreign",
    "chain with rules": "add chain ip kube-proxy foreign\nadd rule ip kube-proxy foreign ip saddr 10.0.0.1 drop",
    "chain that is jumped to": (
        "add chain ip kube-proxy foreign\nadd rule ip kube-proxy foreign drop\n"
        "insert rule ip kube-proxy services jump foreign"
    ),
    "chain of a Service that is none": (
        "add chain ip kube-proxy service-AAAAAAAA-ns/ghost/tcp/\n"
        "add rule ip kube-proxy service-AAAAAAAA-ns/ghost/tcp/ meta l4proto tcp dnat to 10.244.0.66:80\n"
        "add element ip kube-proxy service-ips { 10.96.0.66 . tcp . 80 : goto service-AAAAAAAA-ns/ghost/tcp/ }"
    ),
    "set": "add set ip kube-proxy foreign { type ipv4_addr ; flags interval ; elements = { 10.0.0.0/8 } ; }",
    "set of another type": "add set ip kube-proxy foreign { type ifname ; elements = { eth0 } ; }",
    "set that a rule uses": (
        "add set ip kube-proxy foreign { type ipv4_addr ; }\nadd rule ip kube-proxy services ip saddr @foreign drop"
    ),
    "map to a chain": (
        "add chain ip kube-proxy foreign\n"
        "add map ip kube-proxy others { type mark : verdict ; elements = { 1 : jump foreign } ; }"
    ),
    "affinity set": "add set ip kube-proxy affinity-A-n/x/tcp/__1/1 { type ipv4_addr ; flags dynamic,timeout ; }",
    "slot map": "add map ip kube-proxy endpoints-tcp-9 { typeof numgen random mod 1 : ip daddr . tcp dport ; }",
    "element of a set": "add element ip kube-proxy cluster-ips { 10.96.9.9 }",
    "element of a map": "add element ip kube-proxy no-endpoint-services { 10.96.9.9 . tcp . 1 : drop }",
    "element of another protocol": "add element ip kube-proxy no-endpoint-services { 10.96.9.9 . 47 . 1 : accept }",
    "node port": "add element ip kube-proxy service-nodeports { sctp . 1 : return }",
    "slots": "add element ip kube-proxy endpoints-tcp-0 { 900 : 10.244.0.9 . 1, 902 : 10.244.0.9 . 1 }",
    "rule of a Service": "add rule ip kube-proxy {many} counter",
    "rule of the base": "insert rule ip kube-proxy masquerading return",
    "rule a second time": 'add rule ip kube-proxy reject-chain reject comment "#aaaaaaaa"',
}
_MISSING = {
    "rule of a Service": "flush chain ip kube-proxy {many}",
    "rule of an endpoint": "flush chain ip kube-proxy {endpoint}",
    "rule of the base": "flush chain ip kube-proxy services",
    "all rules of a hook": "flush chain ip kube-proxy nat-prerouting",
    "chain of a Service": (
        "delete element ip kube-proxy service-ips {{ 10.96.0.3 . tcp . 80 }}\nflush chain ip kube-proxy {external}\n"
        "delete chain ip kube-proxy {many}"
    ),
    "element of a set": "delete element ip kube-proxy cluster-ips {{ 10.96.0.3 }}",
    "element of a map": "delete element ip kube-proxy service-ips {{ 10.96.0.2 . tcp . 80 }}",
    "all elements": "flush map ip kube-proxy service-ips\nflush set ip kube-proxy hairpin-connections",
    "node port address": "flush set ip kube-proxy nodeport-ips",
    "slot": "delete element ip kube-proxy endpoints-tcp-0 {{ 1 }}",
    "all slots": "flush map ip kube-proxy endpoints-tcp-0",
    "table": "delete table ip kube-proxy",
    "whole ruleset": "flush ruleset",
    "verdict": (
        "delete element ip kube-proxy service-ips {{ 10.96.0.2 . tcp . 80 }}\n"
        "add element ip kube-proxy service-ips {{ 10.96.0.2 . tcp . 80 : drop }}"
    ),
    "goto made a jump": (
        "delete element ip kube-proxy service-ips {{ 10.96.0.2 . tcp . 80 }}\n"
        "add element ip kube-proxy service-ips {{ 10.96.0.2 . tcp . 80 : jump {one} }}"
    ),
    "endpoint of a slot": (
        "delete element ip kube-proxy endpoints-tcp-0 {{ 0 }}\n"
        "add element ip kube-proxy endpoints-tcp-0 {{ 0 : 10.244.0.77 . 8080 }}"
    ),
    "map that nothing names": "delete map ip kube-proxy firewall-ips",
}


def _spell(text: str, held: dict[str, object]) -> str:
    """Put the names of chains in."""

    def chain(start: str, of: str) -> str:
        return next(n.removeprefix("chain ") for n in held if n.startswith(f"chain {start}-") and f"ns/{of}/" in n)

    return text.format(
        many=chain("service", "many"),
        external=chain("external", "many"),
        one=chain("service", "one"),
        endpoint=chain("endpoint", "sticky"),
    )


@pytest.mark.parametrize("what", _FOREIGN)
def test_what_others_added_is_removed_by_a_full_sync(what: str) -> None:
    table = Table(*shop())
    table.sync()
    held = view(V4)
    text = _FOREIGN[what] if "{many}" not in _FOREIGN[what] else _spell(_FOREIGN[what], held)
    run("nft", "-f", "-", text=text)
    table.clock.time += 3600
    assert table.sync() != [] or table.proxier.tidy_due() is not None
    table.tidy()
    assert view(V4) == held
    assert not re.search(r"foreign|others|endpoints-tcp-9|10\.244\.0\.9\b", listing(V4))
    assert not table.last.took_over
    assert table.again().sync() == []


@pytest.mark.parametrize("what", _MISSING)
def test_what_others_deleted_or_changed_comes_back_with_a_full_sync(what: str) -> None:
    table = Table(*shop())
    table.sync()
    held = view(V4)
    text = _spell(_MISSING[what], held)
    if what == "map that nothing names":
        text = "flush chain ip kube-proxy firewall-check\n" + text
    run("nft", "-f", "-", text=text)
    table.clock.time += 3600
    assert table.sync() != []
    table.tidy()
    assert view(V4) == held
    assert table.again().sync() == []


def test_change_that_meets_a_table_that_others_flushed_makes_all_of_it_anew() -> None:
    table = Table(*shop())
    table.sync()
    run("nft", "flush", "ruleset")
    table.sync(endpoints("many", [1, 2, 3, 4]))
    assert table.last.full
    assert "No such file or directory" in str(table.journal.warned)
    assert view(V4) == expected(table)


def test_tables_of_others_are_left_alone(namespace: Namespace) -> None:
    """Whatever they are called, and whatever they hold; nor are they looked at."""
    namespace.nft(
        "add table inet kube-proxy\nadd set inet kube-proxy s { type ifname ; elements = { eth0 } ; }\n"
        "add table ip kube-proxy-2\nadd chain ip kube-proxy-2 services\nadd rule ip kube-proxy-2 services counter\n"
        "add table ip6 kube-proxy\nadd chain ip6 kube-proxy services\nadd rule ip6 kube-proxy services drop\n"
        "add table ip filter\nadd map ip filter endpoints-tcp-0 { type mark : verdict ; }\n"
        "add chain ip filter service-x/y\nadd rule ip filter service-x/y drop\n"
    )
    others = [("inet", "kube-proxy"), ("ip", "kube-proxy-2"), ("ip6", "kube-proxy"), ("ip", "filter")]

    def shown() -> list[str]:
        return [run("nft", "list", "table", *other) for other in others]

    before = shown()
    table = Table(*shop())
    texts = table.sync() + table.sync(gone("Service", "many")) + table.tidy() + table.again().sync()
    assert shown() == before
    assert {" ".join(line.split()[2:4]) for line in statements(texts) if re.match(r"(add|delete|flush) ", line)} == {
        "ip kube-proxy"
    }


@families
def test_the_tables_of_both_families_are_independent(family: Family) -> None:
    other = V6 if family is V4 else V4
    first, second = Table(*shop(family), family=family), Table(*shop(other), family=other)
    first.sync()
    second.sync()
    held = view(other)
    first.sync(*(gone("Service", name) for name in ("many", "one", "sticky")))
    first.tidy()
    assert view(other) == held
    run("nft", "delete", "table", TABLE_FAMILY[family], "kube-proxy")
    assert second.again().sync() == []


def test_empty_cluster_has_the_base_only() -> None:
    table = Table(cluster=Cluster())
    table.sync()
    held = view(V4)
    assert not any("/" in name for name in held)
    assert held["chain nat-prerouting"][0] == ["nat", "prerouting", -100]
    assert table.again().sync() == []
