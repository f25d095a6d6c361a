"""Transactions: kernels, libraries, netlink, and what an earlier version has left."""

import json
import os
import time

import pytest

from netns.namespaces import Namespace
from nodeproxy.kernel import netlink, support
from nodeproxy.kernel.addresses import list_addresses
from nodeproxy.kernel.errors import TransactionError, UnsupportedError
from nodeproxy.kernel.netlink import NftSocket, attributes, number, text
from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.support import (
    SKIP_KERNEL_CHECK,
    check_libnftables,
    version_tuple,
)
from nodeproxy.kernel.watch import TableWatch
from nodeproxy.kube.addresses import Family
from nodeproxy.ruleset.render import TABLE
from unit.ruleset.build import renderer
from unit.sync.running import WEB, Speaking, eventually, make
from unit.sync.support import TABLE_FAMILY, V4, V6, Table, endpoints, expected, listing, shop, sticky, view
from unit.sync.support import run as command

families = pytest.mark.parametrize("family", [V4, V6], ids=["IPv4", "IPv6"])


# --- B07, B08: versions and features ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.9.8", "1.0.0", "garbage", ""])
def test_b07_library_that_is_too_old_is_named_and_nothing_is_written(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """kubernetes/kubernetes#122743, #124152: before 1.0.1 nft read all tables to change one, and failed on others'."""
    monkeypatch.setattr(Nft, "version", lambda _: version)
    source = Speaking(*WEB)
    agent, _ = make(source)
    with pytest.raises(UnsupportedError, match=rf"libnftables 1\.0\.1 or later .* {version or 'of unknown version'}"):
        agent.run()
    assert namespace.run("nft", "list", "ruleset") == ""


@pytest.mark.parametrize("version", ["1.0.1", "1.0.6 (Lester Gooch #5)", "nftables v1.1.3 (Commodore Bullmoose #4)"])
def test_b07_library_that_is_new_enough_is_taken_however_it_spells_its_version(version: str) -> None:
    """kubernetes/kubernetes#124152: versions are compared as numbers."""
    check_libnftables(version)


def test_b07_kernel_that_is_too_old_is_named_and_may_be_tried_all_the_same(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubernetes/kubernetes#122572, #124152: kernels with features ported back state an old version."""
    monkeypatch.setattr(support, "MINIMUM_KERNEL", (99, 0))
    monkeypatch.delenv(SKIP_KERNEL_CHECK, raising=False)
    agent, _ = make(Speaking(*WEB))
    with pytest.raises(UnsupportedError, match=rf"Linux .*this is .*{os.uname().release}.*{SKIP_KERNEL_CHECK}"):
        agent.run()
    assert namespace.run("nft", "list", "ruleset") == ""
    monkeypatch.setenv(SKIP_KERNEL_CHECK, "1")
    probe = renderer(V4).probe()
    assert version_tuple(support.check_support(Nft(), probe))
    assert namespace.run("nft", "list", "ruleset") == "", "features are probed by dry runs"


class Lacking(Nft):
    """A kernel without the module for one expression: ENOENT, as for a chain that is missing."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self._word = word

    def check(self, text: str) -> None:
        for line in text.splitlines():
            if self._word in line:
                raise TransactionError("Could not process rule: No such file or directory", statement=line)
        super().check(text)


@pytest.mark.parametrize(
    ("word", "module"),
    [("fib", "nft_fib"), ("masquerade", "nft_masq"), ("numgen", "nft_numgen"), ("reject", "nft_rej")],
)
def test_b08_missing_kernel_feature_is_named_with_its_module(namespace: Namespace, word: str, module: str) -> None:
    """siderolabs/pkgs#951: 'No such file or directory' was said of a fib expression; a module was what was missing."""
    agent, _ = make(Speaking(*WEB))
    agent._nft = Lacking(word)
    with pytest.raises(UnsupportedError, match="the kernel lacks ") as caught:
        agent.run()
    assert module in str(caught.value)
    assert str(caught.value).count("(nft_") == 1, "and no other"
    assert namespace.run("nft", "list", "ruleset") == ""


@pytest.mark.usefixtures("namespace")
def test_b08_missing_object_is_not_taken_for_a_missing_feature() -> None:
    """siderolabs/pkgs#951: with all features there, the same words are about the statement that they are said of."""
    nft = Nft()
    support.check_features(nft, renderer(V4).probe())
    with pytest.raises(TransactionError, match="No such file or directory") as caught:
        nft.run("add table ip t\nadd chain ip t c\nadd rule ip t c fib daddr type local goto nowhere # ns/web\n")
    assert caught.value.owner == "ns/web"
    assert caught.value.statement.endswith("goto nowhere")


# --- B11: what can't be altered in place ------------------------------------------------------------------------------


def recreate(chain: str, declared: str) -> str:
    return (
        f"flush chain ip kube-proxy {chain}\ndelete chain ip kube-proxy {chain}\n"
        f"add chain ip kube-proxy {chain} {{ {declared} ; }}\n"
    )


CHANGED_DECLARATIONS = {
    "priority": recreate("nat-prerouting", "type nat hook prerouting priority -90"),
    "type": recreate("nat-output", "type filter hook output priority -100"),
    "hook": recreate("filter-forward", "type filter hook input priority 0"),
    "key of a map": (
        "flush chain ip kube-proxy firewall-check\ndelete map ip kube-proxy firewall-ips\n"
        "add map ip kube-proxy firewall-ips { type ipv4_addr . inet_service : verdict ; }\n"
    ),
}


@pytest.mark.parametrize("what", CHANGED_DECLARATIONS)
@pytest.mark.usefixtures("namespace")
def test_b11_table_of_an_earlier_version_is_declared_anew_and_clients_stay(what: str) -> None:
    """kubernetes/kubernetes#123162: a base chain that an upgrade declared otherwise had every transaction refused.

    It is replaced in one transaction, at the start, and clients keep their endpoints.
    """
    table = Table(*shop())
    table.sync()
    (name, *_) = sorted(key.removeprefix("set ") for key in view(V4) if key.startswith("set affinity-"))
    command("nft", "add", "element", "ip", TABLE, name, "{ 10.244.0.77 timeout 100s expires 90s }")
    command("nft", "-f", "-", text=CHANGED_DECLARATIONS[what])
    later = table.again()
    assert len(later.sync()) == 1
    assert later.last.took_over
    assert "10.244.0.77" in command("nft", "list", "set", "ip", TABLE, name)
    command("nft", "delete", "element", "ip", TABLE, name, "{ 10.244.0.77 }")
    assert view(V4) == expected(later)
    assert later.sync(endpoints("one", [9])) != [], "and transactions go through"
    assert not later.last.full


@pytest.mark.usefixtures("namespace")
def test_b11_other_timeout_of_an_affinity_set_is_taken_over_and_clients_stay() -> None:
    """openstack-k8s-operators/edpm-ansible#1104: what is declared otherwise than at the last start is changed."""
    table = Table(sticky("a", 1, 100), endpoints("a", [1, 2]))
    table.sync()
    sets = [key.removeprefix("set ") for key in view(V4) if key.startswith("set affinity-")]
    command("nft", "add", "element", "ip", TABLE, sets[0], "{ 10.244.0.77 }")
    table.move(sticky("a", 1, 50))
    later = table.again()
    later.sync()
    assert later.last.took_over == ""
    for name in sets:
        assert "timeout 50s" in command("nft", "list", "set", "ip", TABLE, name)
    assert "10.244.0.77" in command("nft", "list", "set", "ip", TABLE, sets[0])
    assert later.again().sync() == []


# --- B22: netlink -----------------------------------------------------------------------------------------------------


@families
@pytest.mark.parametrize("others", [0, 1, 2], ids=["our table", "one more table", "two more tables"])
@pytest.mark.usefixtures("namespace")
def test_b22_each_dump_of_nftables_says_what_nft_lists(family: Family, others: int) -> None:
    """svinota/pyroute2#559, #768: a listing through a code path that few use gave 'Invalid argument'.

    Tables, chains, rules, sets and elements are as many and as named as nft itself lists them.
    """
    with NftSocket(family) as sock:
        assert [*sock.dump(netlink.GET_TABLE, {})] == []
        assert [*sock.dump(netlink.GET_RULE, {1: TABLE})] == []
    ip = TABLE_FAMILY[family]
    for index in range(others):
        declared = f"add chain {ip} other{index} c\nadd rule {ip} other{index} c drop\nadd set {ip} other{index} s"
        command("nft", "-f", "-", text=f"add table {ip} other{index}\n{declared} {{ type inet_service ; }}\n")
    Table(*shop(family), family=family).sync()
    objects = json.loads(listing(family, "-j"))["nftables"]

    def listed(kind: str, attribute: str = "name") -> list[str]:
        return sorted(item[kind][attribute] for item in objects if kind in item)

    with NftSocket(family) as sock:

        def dumped(kind: int, name: int, names: dict[int, str]) -> list[str]:
            found = [attributes(item) for item in sock.dump(kind, names)]
            return sorted(text(item[name]) for item in found if text(item[1]) == TABLE)

        tables = sorted([TABLE, *(f"other{index}" for index in range(others))])
        assert sorted(text(attributes(item)[1]) for item in sock.dump(netlink.GET_TABLE, {})) == tables
        assert dumped(netlink.GET_CHAIN, 3, {1: TABLE}) == listed("chain")
        assert dumped(netlink.GET_RULE, 2, {1: TABLE}) == listed("rule", "chain")
        anonymous = 0x1
        sets = [attributes(item) for item in sock.dump(netlink.GET_SET, {1: TABLE})]
        named = [text(item[2]) for item in sets if not number(item.get(3, memoryview(b"\0"))) & anonymous]
        assert sorted(named) == sorted(listed("set") + listed("map"))
        for item in (item[kind] for kind in ("set", "map") for item in objects if kind in item):
            count = 0
            for message in sock.dump(netlink.GET_ELEMENT, {1: TABLE, 2: item["name"]}):
                count += sum(1 for _ in netlink.each_attribute(attributes(message).get(3, memoryview(b""))))
            assert count == len(item.get("elem", [])), item["name"]


@families
def test_b22_kernel_tells_of_changes_of_others_with_their_program(namespace: Namespace, family: Family) -> None:
    """svinota/pyroute2#559: the messages that drift is noticed by are proven, too."""
    table = Table(*shop(family), family=family)
    watch = TableWatch(lambda: None)
    watch.start()
    try:
        table.nft.follow_port(watch.own)
        table.sync()
        namespace.run("nft", "add", "rule", TABLE_FAMILY[family], TABLE, "services", "drop")
        heard = []
        eventually(lambda: bool(heard.extend(watch.take()) or heard), 10)
        time.sleep(0.1)
        heard += watch.take()
    finally:
        watch.stop()
    assert {(found.family, found.program, found.chains) for found in heard} == {
        (family, "nft", frozenset({"services"})),
    }


def test_b22_addresses_are_those_that_ip_lists(namespace: Namespace) -> None:
    """svinota/pyroute2#559: the listing of addresses, of both families and every kind of link."""
    namespace.ip(
        [
            "link add one type veth peer name two",
            "addr add 192.0.2.7/24 dev one",
            "addr add 198.51.100.1 peer 198.51.100.2/32 dev two",
            "addr add 2001:db8::1/64 dev two nodad",
            "link set one up",
        ]
    )
    listed = json.loads(namespace.run("ip", "-j", "addr"))
    wanted = {info["local"] for link in listed for info in link["addr_info"]}
    assert len(wanted) >= 4
    assert set(list_addresses()) == wanted
