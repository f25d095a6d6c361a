"""Whatever others put into our table, one full sync brings it to what is planned, and the next has nothing to do."""

import json
import re
import shutil
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from netns.namespaces import Namespace
from nodeproxy.kube.addresses import Family
from nodeproxy.ruleset.render import TEMPLATES
from nodeproxy.sync.planner import Planner
from nodeproxy.sync.proxier import Proxier

from .support import NODE, Table, endpoints, expected, gone, listing, run, service, shop, sticky, view
from .support import change as decoded

pytestmark = pytest.mark.usefixtures("namespace")

V4, V6 = Family.IPV4, Family.IPV6
families = pytest.mark.parametrize("family", [V4, V6])

# T is family and table, A the type of addresses, {many} the chain of a Service with three endpoints.
ODD = {
    "element of a map that matches everything": "add element T no-endpoint-services { * : drop }",
    "element of a set that matches everything": "add element T cluster-ips { * }",
    "element of a slot map that matches everything": "add element T endpoints-tcp-0 { * : ADDRESS . 80 }",
    "set that sounds like one of clients": "add set T affinity-foo { type A ; elements = { ADDRESS } ; }",
    "map that sounds like a set of clients": "add map T affinity-foo { type mark : verdict ; }",
    "set of clients that is a map": "add map T affinity-AAAAAAAA-n/x/tcp/__1/1 { type mark : verdict ; }",
    "set of clients without a time": "add set T affinity-AAAAAAAA-n/x/tcp/__1/1 { type A ; }",
    "set of clients of another type": (
        "add set T affinity-AAAAAAAA-n/x/tcp/__1/1 { type inet_service ; flags dynamic,timeout ; timeout 9s ; }\n"
        "add element T affinity-AAAAAAAA-n/x/tcp/__1/1 { 80 }"
    ),
    "set of clients with an element that matches everything": (
        "add set T affinity-AAAAAAAA-n/x/tcp/__1/1 { type A ; flags dynamic,timeout ; timeout 9s ; }\n"
        "add element T affinity-AAAAAAAA-n/x/tcp/__1/1 { * }\n"
        "add element T cluster-ips { * }"
    ),
    "slot behind those that are in use": "add element T endpoints-tcp-0 { 1023 : ADDRESS . 80 }",
    "slot beyond the size of a map": "add element T endpoints-tcp-0 { 5000 : ADDRESS . 80, 1024 : ADDRESS . 80 }",
    "slot map of another size": (
        "add map T endpoints-tcp-7 { typeof numgen random mod 1 : IP daddr . tcp dport ; size 4 ; }\n"
        "add element T endpoints-tcp-7 { 0 : ADDRESS . 80, 900 : ADDRESS . 80 }"
    ),
    "slot map without a size": (
        "add map T endpoints-tcp-7 { typeof numgen random mod 1 : IP daddr . tcp dport ; }\n"
        "add element T endpoints-tcp-7 { 0 : ADDRESS . 80, 99999 : ADDRESS . 80 }"
    ),
    "slot map of verdicts": "add map T endpoints-tcp-7 { type mark : verdict ; elements = { 1 : drop } ; }",
    "slot map of chains that holds addresses": "add map T endpoint-chains-7 { type mark : A ; }",
    "slot map that is a set": "add set T endpoints-tcp-7 { type mark ; elements = { 3 } ; }",
    "slot map with an interval": (
        "add map T endpoint-chains-7 { type mark : verdict ; flags interval ; elements = { 1-5 : drop, 7 : accept } ; }"
    ),
    "slot map of a high number": "add map T endpoints-tcp-4294967296 { type mark : verdict ; }",
    "slot map of a number that is spelled otherwise": "add map T endpoints-tcp-007 { type mark : verdict ; }",
    "slot map whose elements pass": (
        "add map T endpoint-chains-7 { type mark : verdict ; timeout 9s ; elements = { 3 : drop } ; }"
    ),
    "slot map of odd type that a chain draws from": (
        "add map T endpoints-udp-0 { typeof numgen random mod 1 : verdict ; elements = { 0 : drop, 1 : drop } ; }\n"
        "add chain T service-AAAAAAAA-ns/ghost/udp/\n"
        "add rule T service-AAAAAAAA-ns/ghost/udp/ numgen random mod 2 vmap @endpoints-udp-0"
    ),
    "map with a size in place of ours": (
        "flush chain T firewall-check\ndelete map T firewall-ips\n"
        "add map T firewall-ips { type A . inet_proto . inet_service : verdict ; size 1 ; }"
    ),
    "map whose elements pass in place of ours": (
        "flush chain T firewall-check\ndelete map T firewall-ips\n"
        "add map T firewall-ips { type A . inet_proto . inet_service : verdict ; timeout 9s ; }"
    ),
    "dormant table": "add table T { flags dormant ; }",
    "policy of a chain": "add chain T filter-forward { type filter hook forward priority 0 ; policy drop ; }",
    "map with an interval": (
        "add map T odd { type A : verdict ; flags interval ; elements = { RANGE : drop } ; }\n"
        "add rule T services IP saddr vmap @odd"
    ),
    "map with an interval in place of ours": (
        "flush chain T firewall-check\ndelete map T firewall-ips\n"
        "add map T firewall-ips { type A . inet_proto . inet_service : verdict ; flags interval ; }\n"
        "add element T firewall-ips { ADDRESS . tcp . 80-90 : drop }"
    ),
    "rule that draws a number of another size": (
        "flush chain T {many}\nadd rule T {many} meta l4proto tcp dnat IP to numgen random mod 2 map @endpoints-tcp-0"
    ),
    "rule that draws a number behind the end": (
        "flush chain T {many}\n"
        "add rule T {many} meta l4proto tcp dnat IP to numgen random mod 3 offset 5000 map @endpoints-tcp-0"
    ),
    "rule that draws from a map of its own": "add rule T {many} numgen inc mod 4 vmap { 0 : drop, 1 : accept }",
    "chain with an odd name": "add chain T _Service.-_/x_1/..\nadd rule T _Service.-_/x_1/.. drop",
    "chain with a long name": f"add chain T {'y/' * 127}",
    "sets of other types": (
        'add set T odd-1 { type ifname ; elements = { "eth*" } ; flags interval ; }\n'
        "add set T odd-2 { type ether_addr . inet_service ; elements = { 02:00:00:00:00:01 . 80 } ; }\n"
        "add set T odd-3 { type mark ; flags timeout ; elements = { 7 timeout 1h } ; }\n"
        "add set T odd-4 { typeof ct state ; elements = { new } ; }"
    ),
    "maps of other types": (
        "add map T odd-1 { type inet_service : mark ; elements = { 80 : 7 } ; }\n"
        "add map T odd-2 { type mark : A ; elements = { 7 : ADDRESS } ; }\n"
        "add map T odd-3 { type mark : verdict ; elements = { 7 : continue, 8 : return } ; }"
    ),
    "map of counters": 'add counter T odd\nadd map T odds { type mark : counter ; elements = { 7 : "odd" } ; }',
    "elements with counters": "add set T odd { type A ; counter ; elements = { ADDRESS } ; }",
    "counter": "add counter T odd",
    "counter that a rule uses": "add counter T odd\nadd rule T services counter name odd",
    "quota": "add quota T odd { over 25 mbytes ; }",
    "limit": "add limit T odd { rate 400/minute ; }",
    "flowtable": "add flowtable T odd { hook ingress priority 0 ; devices = { lo } ; }",
    "helper": 'add ct helper T odd { type "ftp" protocol tcp ; }',
}
WORDS = {
    V4: {"T ": "ip kube-proxy ", "A ": "ipv4_addr ", "IP ": "ip ", "ADDRESS": "192.0.2.77", "RANGE": "192.0.2.0/25"},
    V6: {
        "T ": "ip6 kube-proxy ",
        "A ": "ipv6_addr ",
        "IP ": "ip6 ",
        "ADDRESS": "2001:db8::77",
        "RANGE": "2001:db8::/99",
    },
}


def spell(text: str, family: Family) -> str:
    """Put words and names of chains in."""
    many = next(name for name in view(family) if name.startswith("chain service-") and "ns/many/" in name)
    text = text.replace("{many}", many.removeprefix("chain "))
    for word, meaning in WORDS[family].items():
        text = re.sub(rf"\b{word}", meaning, text)
    return text


def change(text: str) -> None:
    """Have nft do what some kernels have no module for."""
    done = subprocess.run(["nft", "-f", "-"], input=text, capture_output=True, text=True, timeout=20, check=False)
    if "flowtable" in text and "No such file or directory" in done.stderr:
        pytest.skip("this kernel has no flowtables")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("what", "family"), [(what, family) for what in ODD for family in Family if family is V4 or "ADDRESS" in ODD[what]]
)
def test_table_that_others_changed_is_as_planned_after_one_full_sync(what: str, family: Family) -> None:
    """Named counters, quotas and the like may stay: without a rule that names them they do nothing."""
    table = Table(*shop(family), family=family)
    table.sync()
    held = view(family)
    change(spell(ODD[what], family))
    later = table.again()
    later.sync()
    later.tidy()
    assert view(family) == held
    assert "dormant" not in listing(family)
    assert "policy drop" not in listing(family)
    assert later.again().sync() == []


NAMES = [
    *((kind, name) for kind in ("chain", "set") for name in ("a b", "x; flush ruleset", "9abc", "\u00fc\u00f1")),
    ("chain", "service-ABCDEFGH-ns/a b/tcp/"),
    ("set", "odd-\u0663"),
    ("set", "drop"),
]


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_what_nft_cannot_spell_goes_with_the_table(namespace: Namespace, kind: str, name: str) -> None:
    """Programs that speak JSON, or netlink, to the kernel may give any name; clients with affinity stay."""
    namespace.nft("add table inet other")
    table = Table(*shop())
    table.sync()
    clients = next(key.removeprefix("set ") for key in view(V4) if key.startswith("set affinity-"))
    run("nft", "add", "element", "ip", "kube-proxy", clients, "{ 192.0.2.9 }")
    body = {"family": "ip", "table": "kube-proxy", "name": name, **({"type": "ipv4_addr"} if kind == "set" else {})}
    run("nft", "-j", "-f", "-", text=json.dumps({"nftables": [{"add": {kind: body}}]}))
    assert f"{kind} {name}" in view(V4)
    table.clock.time += 3600
    table.sync(endpoints("many", [1, 2, 3, 4]))
    table.tidy()
    assert table.last.took_over
    assert table.journal.tidying_failures == []
    assert "192.0.2.9" in run("nft", "list", "set", "ip", "kube-proxy", clients)
    run("nft", "flush", "set", "ip", "kube-proxy", clients)
    assert view(V4) == expected(table)
    assert "table inet other" in run("nft", "list", "tables")
    assert table.again().sync() == []


ENDLESS = "add map ip kube-proxy endpoints-tcp-7 { typeof numgen random mod 1 : ip daddr . tcp dport ; }\n"
GHOST = (
    "add chain ip kube-proxy service-AAAAAAAA-ns/ghost/tcp/\n"
    "add rule ip kube-proxy service-AAAAAAAA-ns/ghost/tcp/"
    " meta l4proto tcp dnat ip to numgen random mod 300000000 map @endpoints-tcp-7"
)


@pytest.mark.parametrize(
    "odd",
    [
        f"{ENDLESS}add element ip kube-proxy endpoints-tcp-7 {{ 4000000000 : 192.0.2.7 . 80 }}",
        f"{ENDLESS}add element ip kube-proxy endpoints-tcp-7 {{ 9 : 192.0.2.7 . 80 }}\n" + GHOST,
    ],
    ids=["slot of a high number", "rule that draws high numbers"],
)
def test_no_memory_is_taken_for_slots_that_are_not_there(odd: str) -> None:
    table = Table(*shop())
    table.sync()
    held = view(V4)
    run("nft", "-f", "-", text=odd)
    later = table.again()
    tracemalloc.start()
    try:
        later.sync()
        later.tidy()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20
    assert view(V4) == held
    assert later.again().sync() == []


def test_tables_of_others_are_left_alone_when_ours_is_odd(namespace: Namespace) -> None:
    namespace.nft(
        "add table ip other { flags dormant ; }\nadd map ip other endpoints-tcp-0 { type mark : verdict ; }\n"
        "add element ip other endpoints-tcp-0 { * : drop }\nadd table inet kube-proxy\n"
        "add set inet kube-proxy affinity-foo { type ipv4_addr ; }\n"
    )
    others = [("ip", "other"), ("inet", "kube-proxy")]
    before = [run("nft", "list", "table", *other) for other in others]
    table = Table(*shop())
    table.sync()
    assert table.last.took_over == ""
    change(spell("add table T { flags dormant ; }\nadd element T cluster-ips { * }", V4))
    later = table.again()
    later.sync()
    assert later.last.took_over
    assert [run("nft", "list", "table", *other) for other in others] == before


@families
def test_ipv4_compatible_addresses_survive_a_restart_without_a_write(family: Family) -> None:
    """The C library spells such an IPv6 address otherwise than Kubernetes does (RFC 4291, 2.5.5.1)."""
    vip = {V4: "10.96.0.9", V6: "::1.2.3.4"}[family]
    hosts = {V4: ["10.0.0.1", "10.0.0.2"], V6: ["::10.0.0.1", "::10.0.0.2"]}[family]
    slices = [
        decoded(
            "EndpointSlice",
            f"{of}-1",
            "ns",
            metadata={"labels": {"kubernetes.io/service-name": of}},
            addressType=family.label,
            ports=[{"name": "", "port": 8080, "protocol": "TCP"}],
            endpoints=[{"addresses": [host], "nodeName": NODE} for host in some],
        )
        for of, some in (("odd", hosts), ("one", hosts[:1]), ("stuck", hosts))
    ]
    table = Table(
        service("odd", clusterIP=vip, family=family, externalIPs=[{V4: "9.9.9.9", V6: "::9.9.9.9"}[family]]),
        service("one", 2, family=family),
        sticky("stuck", 3, family=family),
        *slices,
        family=family,
    )
    table.sync()
    held = view(family)
    assert len(held["set hairpin-connections"][1]) == 2
    later = table.again()
    assert later.sync() == []
    assert later.tidy() == []
    assert later.last.took_over == ""
    later.sync(gone("Service", "odd"))
    later.tidy()
    assert view(family) == expected(later)


_EXTRAS = {
    "policy": "priority -100 ; policy accept",
    "comment": 'priority -100 ; comment "of the node"',
    "priority in words": "priority dstnat",
}


def with_hooks(folder: Path, declared: str) -> Callable[[], Table]:
    """Runs of the program with templates that declare the hook of ``nat-prerouting`` otherwise."""
    shutil.copytree(TEMPLATES, folder)
    base = folder / "base.nft.j2"
    original, hook = base.read_text(), "type nat hook prerouting "
    base.write_text(original.replace(f"{hook}priority -100", hook + declared))
    assert base.read_text() != original

    def start() -> Table:
        table = Table(*shop())
        planner = Planner(V4, table.settings, table.cluster.store.view, folder)
        table.proxier = Proxier(planner, table.nft, table.journal, table.clock)
        table.move()
        return table

    return start


@pytest.mark.parametrize("extra", _EXTRAS)
def test_base_chain_that_a_changed_template_declares_otherwise_is_taken_as_it_is(extra: str, tmp_path: Path) -> None:
    """What the declaration says beyond type, hook and number can't be compared with what the kernel holds."""
    start = with_hooks(tmp_path / "templates", _EXTRAS[extra])
    assert start().sync() != []
    later = start()
    assert later.sync() == []
    assert later.last.took_over == ""
    run("nft", "flush", "chain", "ip", "kube-proxy", "nat-prerouting")
    mended = start()
    assert len(mended.sync()) == 1
    assert mended.last.took_over == ""


def test_base_chain_that_lost_its_hook_is_made_anew_with_a_changed_template_too(tmp_path: Path) -> None:
    start = with_hooks(tmp_path / "templates", _EXTRAS["policy"])
    start().sync()
    change(
        "flush chain ip kube-proxy nat-prerouting\ndelete chain ip kube-proxy nat-prerouting\n"
        "add chain ip kube-proxy nat-prerouting\n"
    )
    later = start()
    later.sync()
    assert later.last.took_over
    assert view(V4)["chain nat-prerouting"][0] == ["nat", "prerouting", -100]
    assert start().sync() == []
