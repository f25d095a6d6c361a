"""A table that another program left under our name becomes ours in one transaction."""

import pytest

from nodeproxy.kernel.errors import TransactionError
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Change

from .support import TABLE_FAMILY, Once, Table, endpoints, expected, gone, run, service, sticky, view

pytestmark = pytest.mark.usefixtures("namespace")

V4, V6 = Family.IPV4, Family.IPV6

# The layout of Kubernetes 1.31: other hooks and priorities, a chain per endpoint that marks by a jump, anonymous maps.
OLD = """
add table {ip} kube-proxy {{ comment "rules for kube-proxy" ; }}
add chain {ip} kube-proxy filter-prerouting {{ type filter hook prerouting priority -110 ; }}
add chain {ip} kube-proxy filter-input {{ type filter hook input priority -110 ; }}
add chain {ip} kube-proxy filter-forward {{ type filter hook forward priority -110 ; }}
add chain {ip} kube-proxy filter-output {{ type filter hook output priority -110 ; }}
add chain {ip} kube-proxy filter-output-post-dnat {{ type filter hook output priority -90 ; }}
add chain {ip} kube-proxy nat-prerouting {{ type nat hook prerouting priority -100 ; }}
add chain {ip} kube-proxy nat-output {{ type nat hook output priority -100 ; }}
add chain {ip} kube-proxy nat-postrouting {{ type nat hook postrouting priority 100 ; }}
add set {ip} kube-proxy cluster-ips {{ type {address} ; comment "Active ClusterIPs" ; }}
add set {ip} kube-proxy nodeport-ips {{ type {address} ; }}
add map {ip} kube-proxy service-ips {{ type {address} . inet_proto . inet_service : verdict ; }}
add map {ip} kube-proxy service-nodeports {{ type inet_proto . inet_service : verdict ; }}
add map {ip} kube-proxy no-endpoint-services {{ type {address} . inet_proto . inet_service : verdict ; }}
add map {ip} kube-proxy no-endpoint-nodeports {{ type inet_proto . inet_service : verdict ; }}
add map {ip} kube-proxy firewall-ips {{ type {address} . inet_proto . inet_service : verdict ; }}
add chain {ip} kube-proxy mark-for-masquerade
add rule {ip} kube-proxy mark-for-masquerade mark set mark or 0x4000
add chain {ip} kube-proxy masquerading
add rule {ip} kube-proxy masquerading mark and 0x4000 == 0 return
add rule {ip} kube-proxy masquerading mark set mark xor 0x4000
add rule {ip} kube-proxy masquerading masquerade fully-random
add chain {ip} kube-proxy services
add rule {ip} kube-proxy services {ip} daddr . meta l4proto . th dport vmap @service-ips
add rule {ip} kube-proxy services {ip} daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
add chain {ip} kube-proxy service-endpoints-check
add rule {ip} kube-proxy service-endpoints-check {ip} daddr . meta l4proto . th dport vmap @no-endpoint-services
add chain {ip} kube-proxy nodeport-endpoints-check
add chain {ip} kube-proxy firewall-check
add rule {ip} kube-proxy firewall-check {ip} daddr . meta l4proto . th dport vmap @firewall-ips
add chain {ip} kube-proxy cluster-ips-check
add rule {ip} kube-proxy cluster-ips-check {ip} daddr @cluster-ips reject comment "invalid ports of ClusterIPs"
add chain {ip} kube-proxy reject-chain {{ comment "for maps of verdicts" ; }}
add rule {ip} kube-proxy reject-chain reject
add rule {ip} kube-proxy filter-prerouting ct state new jump firewall-check
add rule {ip} kube-proxy filter-input ct state new jump nodeport-endpoints-check
add rule {ip} kube-proxy filter-forward ct state new jump service-endpoints-check
add rule {ip} kube-proxy filter-output-post-dnat ct state new jump cluster-ips-check
add rule {ip} kube-proxy nat-prerouting jump services
add rule {ip} kube-proxy nat-output jump services
add rule {ip} kube-proxy nat-postrouting jump masquerading
add set {ip} kube-proxy affinity-AAAAAAAA-b/tcp/__1/80 {{ type {address} ; flags dynamic,timeout ; timeout 9s ; }}
add chain {ip} kube-proxy endpoint-AAAAAAAA-b/tcp/__1/80
add rule {ip} kube-proxy endpoint-AAAAAAAA-b/tcp/__1/80 {ip} saddr {pod1} jump mark-for-masquerade
add rule {ip} kube-proxy endpoint-AAAAAAAA-b/tcp/__1/80 update @affinity-AAAAAAAA-b/tcp/__1/80 {{ {ip} saddr }}
add rule {ip} kube-proxy endpoint-AAAAAAAA-b/tcp/__1/80 meta l4proto tcp dnat to {to1}
add chain {ip} kube-proxy service-AAAAAAAA-b/tcp/
add rule {ip} kube-proxy service-AAAAAAAA-b/tcp/ numgen random mod 1 vmap {{ 0 : goto endpoint-AAAAAAAA-b/tcp/__1/80 }}
add element {ip} kube-proxy service-ips {{ {vip} . tcp . 80 : goto service-AAAAAAAA-b/tcp/ }}
add element {ip} kube-proxy cluster-ips {{ {vip} }}
"""

# The layout of Kubernetes 1.37, cut short: our names, hooks and types; rules without our mark, and anonymous maps.
NEW = """
add table {ip} kube-proxy {{ comment "rules for kube-proxy" ; }}
add chain {ip} kube-proxy filter-prerouting-pre-dnat {{ type filter hook prerouting priority -110 ; }}
add chain {ip} kube-proxy filter-output-pre-dnat {{ type filter hook output priority -110 ; }}
add chain {ip} kube-proxy filter-input {{ type filter hook input priority 0 ; }}
add chain {ip} kube-proxy filter-forward {{ type filter hook forward priority 0 ; }}
add chain {ip} kube-proxy filter-output {{ type filter hook output priority 0 ; }}
add chain {ip} kube-proxy nat-prerouting {{ type nat hook prerouting priority -100 ; }}
add chain {ip} kube-proxy nat-output {{ type nat hook output priority -100 ; }}
add chain {ip} kube-proxy nat-postrouting {{ type nat hook postrouting priority 100 ; }}
add set {ip} kube-proxy cluster-ips {{ type {address} ; comment "Active ClusterIPs" ; }}
add set {ip} kube-proxy hairpin-connections {{ type {address} . {address} . inet_proto . inet_service ; }}
add map {ip} kube-proxy service-ips {{ type {address} . inet_proto . inet_service : verdict ; }}
add chain {ip} kube-proxy services
add rule {ip} kube-proxy services {ip} daddr . meta l4proto . th dport vmap @service-ips
add rule {ip} kube-proxy nat-prerouting jump services
add rule {ip} kube-proxy nat-output jump services
add chain {ip} kube-proxy service-AAAAAAAA-b/tcp/
add rule {ip} kube-proxy service-AAAAAAAA-b/tcp/ meta l4proto tcp dnat to {to1}
add element {ip} kube-proxy service-ips {{ {vip} . tcp . 80 : goto service-AAAAAAAA-b/tcp/ }}
add element {ip} kube-proxy hairpin-connections {{ {pod1} . {pod1} . tcp . 80 }}
"""

WORDS = {
    V4: {"ip": "ip", "address": "ipv4_addr", "pod1": "10.244.0.1", "to1": "10.244.0.1:80", "vip": "10.96.0.2"},
    V6: {"ip": "ip6", "address": "ipv6_addr", "pod1": "fd00:244::1", "to1": "[fd00:244::1]:80", "vip": "fd00:96::2"},
}


def shop(family: Family) -> list[Change]:
    return [
        service("a", 1, family=family),
        endpoints("a", [1, 2, 3], family=family),
        sticky("b", 2, family=family),
        endpoints("b", [1, 2], family=family),
    ]


@pytest.mark.parametrize("family", [V4, V6])
@pytest.mark.parametrize("layout", [OLD, NEW], ids=["1.31", "1.37"])
def test_table_of_kube_proxy_is_replaced_in_one_transaction(family: Family, layout: str) -> None:
    run("nft", "-f", "-", text=layout.format(**WORDS[family]))
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
    run("nft", "-f", "-", text=OLD.format(**WORDS[V4]))
    before = run("nft", "list", "table", "ip", "kube-proxy")
    table = Table(*shop(V4))
    table.nft.before = Once(TransactionError("No"))
    with pytest.raises(TransactionError):
        table.sync()
    assert run("nft", "list", "table", "ip", "kube-proxy") == before
    table.sync()
    assert table.last.took_over
    assert view(V4) == expected(table)
