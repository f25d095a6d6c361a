"""A table that another program left under our name becomes ours in one transaction."""

import pytest

from netns.recorded import RELEASES, Release, recording
from nodeproxy.kernel.errors import TransactionError
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Change

from .support import TABLE_FAMILY, Once, Table, endpoints, expected, gone, run, service, sticky, view

pytestmark = pytest.mark.usefixtures("namespace")

V4, V6 = Family.IPV4, Family.IPV6


def shop(family: Family) -> list[Change]:
    return [
        service("a", 1, family=family),
        endpoints("a", [1, 2, 3], family=family),
        sticky("b", 2, family=family),
        endpoints("b", [1, 2], family=family),
    ]


@pytest.mark.parametrize("family", [V4, V6])
@pytest.mark.parametrize("release", RELEASES)
def test_table_of_kube_proxy_is_replaced_in_one_transaction(family: Family, release: Release) -> None:
    run("nft", "-f", "-", text=recording(release).tables[0 if family is V4 else 1])
    table = Table(*shop(family), family=family)
    texts = table.sync()
    assert len(texts) == 1
    assert f"delete table {TABLE_FAMILY[family]} kube-proxy\n" in texts[0]
    assert table.last.took_over
    assert view(family) == expected(table)
    assert table.sync() == []
    assert table.again().sync() == []
    table.sync(gone("Service", "a"))
    assert table.last.took_over == ""


OURS_OTHERWISE = {
    "priority of a hook": (
        "flush chain ip kube-proxy nat-prerouting\ndelete chain ip kube-proxy nat-prerouting\n"
        "add chain ip kube-proxy nat-prerouting { type nat hook prerouting priority -99 ; }"
    ),
    "hook": (
        "flush chain ip kube-proxy filter-forward\ndelete chain ip kube-proxy filter-forward\n"
        "add chain ip kube-proxy filter-forward { type filter hook input priority 0 ; }"
    ),
    "type of a base chain": (
        "flush chain ip kube-proxy nat-output\ndelete chain ip kube-proxy nat-output\n"
        "add chain ip kube-proxy nat-output { type filter hook output priority -100 ; }"
    ),
    "no hook": (
        "flush chain ip kube-proxy nat-output\ndelete chain ip kube-proxy nat-output\n"
        "add chain ip kube-proxy nat-output"
    ),
    "another base chain": "add chain ip kube-proxy filter-prerouting { type filter hook prerouting priority -110 ; }",
    "key of a map": (
        "flush chain ip kube-proxy firewall-check\ndelete map ip kube-proxy firewall-ips\n"
        "add map ip kube-proxy firewall-ips { type ipv4_addr . inet_service : verdict ; }"
    ),
    "map that is a set": (
        "flush chain ip kube-proxy firewall-check\ndelete map ip kube-proxy firewall-ips\n"
        "add set ip kube-proxy firewall-ips { type ipv4_addr . inet_proto . inet_service ; }"
    ),
    "data of a map": (
        "flush chain ip kube-proxy firewall-check\ndelete map ip kube-proxy firewall-ips\n"
        "add map ip kube-proxy firewall-ips { type ipv4_addr . inet_proto . inet_service : mark ; }"
    ),
    "set that is a map": (
        "flush chain ip kube-proxy masquerading\ndelete set ip kube-proxy hairpin-connections\n"
        "add map ip kube-proxy hairpin-connections { type ipv4_addr . ipv4_addr . inet_proto . inet_service : mark ; }"
    ),
}


@pytest.mark.parametrize("what", OURS_OTHERWISE)
def test_declaration_that_cannot_be_changed_has_the_table_replaced(what: str) -> None:
    """A base chain's hook and a set's types can't be altered in place (B11)."""
    table = Table(*shop(V4))
    table.sync()
    held = view(V4)
    run("nft", "-f", "-", text=OURS_OTHERWISE[what])
    later = table.again()
    assert len(later.sync()) == 1
    assert later.last.took_over
    assert view(V4) == held
    assert later.again().sync() == []


def test_affinity_set_that_is_no_affinity_set_has_the_table_replaced() -> None:
    table = Table(*shop(V4))
    table.sync()
    held = view(V4)
    (name, *_) = sorted(key.removeprefix("set ") for key in held if key.startswith("set affinity-"))
    (user, *_) = (key.removeprefix("chain ") for key in held if key.startswith("chain endpoint-") and name[9:] in key)
    (chooser,) = (key.removeprefix("chain ") for key in held if key.startswith("chain service-") and "ns/b/" in key)
    run(
        "nft",
        "-f",
        "-",
        text=f"flush chain ip kube-proxy {user}\nflush chain ip kube-proxy {chooser}\n"
        f"delete set ip kube-proxy {name}\nadd set ip kube-proxy {name} {{ type ipv4_addr ; }}\n",
    )
    later = table.again()
    later.sync()
    assert later.last.took_over
    assert view(V4) == held


def test_empty_table_of_our_name_is_filled() -> None:
    run("nft", "add", "table", "ip", "kube-proxy")
    table = Table(*shop(V4))
    assert len(table.sync()) == 1
    assert table.last.took_over == ""
    assert view(V4) == expected(table)


def test_failed_takeover_leaves_the_other_table_as_it_was() -> None:
    run("nft", "-f", "-", text=recording("1.31").tables.v4)
    before = run("nft", "-s", "list", "table", "ip", "kube-proxy")
    table = Table(*shop(V4))
    table.nft.before = Once(TransactionError("No"))
    with pytest.raises(TransactionError):
        table.sync()
    assert run("nft", "-s", "list", "table", "ip", "kube-proxy") == before
    table.sync()
    assert table.last.took_over
    assert view(V4) == expected(table)
