"""Reading a table back: all that a real kernel holds of it, and what is done when that changes meanwhile."""

import errno
from collections.abc import Iterator

import pytest

from netns.namespaces import Namespace
from nodeproxy.kernel import netlink
from nodeproxy.kernel.errors import PermissionDeniedError, ReadBackError
from nodeproxy.kernel.netlink import (
    DumpInterruptedError,
    NftSocket,
)
from nodeproxy.kernel.readback import TableForeignError, read_back
from nodeproxy.kube.addresses import Family
from nodeproxy.ruleset.mirror import FOREIGN, Found, SlotUse
from nodeproxy.ruleset.render import Base, RenderContext, Renderer
from nodeproxy.ruleset.rules import Target
from nodeproxy.ruleset.slots import SlotRange

pytestmark = pytest.mark.usefixtures("namespace")

WORDS = {Family.IPV4: ("ip", "ipv4_addr"), Family.IPV6: ("ip6", "ipv6_addr")}
families = pytest.mark.parametrize("family", list(Family))


def base_of(family: Family) -> Base:
    return Renderer(RenderContext(family)).base()


def load(namespace: Namespace, family: Family, lines: str) -> Found:
    """Load lines (``T`` stands for family and table, ``A`` for the type of addresses) and read the table back."""
    ip, address = WORDS[family]
    namespace.nft(
        f"add table {ip} kube-proxy\n" + lines.replace("T ", f"{ip} kube-proxy ").replace("A ", f"{address} ")
    )
    found = read_back(family, base_of(family))
    assert found is not None
    return found


@families
def test_no_table_is_none_whatever_others_have(namespace: Namespace, family: Family) -> None:
    assert read_back(family, base_of(family)) is None
    other = WORDS[Family.IPV6 if family is Family.IPV4 else Family.IPV4][0]
    namespace.nft(
        f"add table {other} kube-proxy\nadd table inet kube-proxy\nadd table {WORDS[family][0]} kube-proxy2\n"
    )
    assert read_back(family, base_of(family)) is None


@families
def test_empty_table_holds_nothing(namespace: Namespace, family: Family) -> None:
    found = load(namespace, family, "")
    assert found == Found(found.mirror)
    assert found.mirror.chains == {}
    assert found.mirror.kinds == {}


@families
def test_chains_hooks_and_digests_are_read(namespace: Namespace, family: Family) -> None:
    found = load(
        namespace,
        family,
        "add chain T nat-prerouting { type nat hook prerouting priority -100 ; }\n"
        "add chain T nat-postrouting { type nat hook postrouting priority 100 ; }\n"
        "add chain T filter-input { type filter hook input priority 0 ; }\n"
        "add chain T services\nadd chain T empty\n"
        'add rule T services accept comment "#abcdefgh"\n'
        'add rule T services drop comment "Some words #234567ab"\n'
        'add rule T services drop comment "no digest"\n'
        "add rule T services counter\n"
        'add rule T services drop comment "x#abcdefgh"\n'
        'add rule T services drop comment "#abcdefg"\n'
        'add rule T services drop comment "#abcdefgh more"\n',
    )
    assert found.mirror.chains == {
        "nat-prerouting": "",
        "nat-postrouting": "",
        "filter-input": "",
        "empty": "",
        "services": "abcdefgh234567ab" + FOREIGN * 5,
    }
    assert found.mirror.hooks == {
        "nat-prerouting": "nat 0 -100",
        "nat-postrouting": "nat 4 100",
        "filter-input": "filter 1 0",
    }


@families
def test_elements_of_every_kind_are_read(namespace: Namespace, family: Family) -> None:
    one, two = {Family.IPV4: ("10.0.0.1", "203.0.113.9"), Family.IPV6: ("2001:db8::1", "fd00::a")}[family]
    found = load(
        namespace,
        family,
        "add set T cluster-ips { type A ; }\n"
        "add set T hairpin-connections { type A . A . inet_proto . inet_service ; }\n"
        "add map T service-ips { type A . inet_proto . inet_service : verdict ; }\n"
        "add map T service-nodeports { type inet_proto . inet_service : verdict ; }\n"
        "add map T no-endpoint-services { type A . inet_proto . inet_service : verdict ; }\n"
        "add chain T service-x/y\n"
        f"add element T cluster-ips {{ {one}, {two} }}\n"
        f"add element T hairpin-connections {{ {one} . {two} . udp . 53 }}\n"
        f"add element T service-ips {{ {one} . tcp . 80 : goto service-x/y, {two} . sctp . 65535 : drop }}\n"
        f"add element T service-ips {{ {one} . udp . 1 : jump service-x/y, {one} . 47 . 2 : accept }}\n"
        "add element T service-nodeports { tcp . 30000 : goto service-x/y, udp . 30000 : return }\n"
        f'add element T no-endpoint-services {{ {one} . tcp . 443 comment "ns/x" : drop }}\n',
    )
    assert found.mirror.kinds == {
        "cluster-ips": "set",
        "hairpin-connections": "set",
        "service-ips": "map",
        "service-nodeports": "map",
        "no-endpoint-services": "map",
    }
    elements = found.mirror.elements
    assert elements["cluster-ips"] == {(one,): None, (two,): None}
    assert elements["hairpin-connections"] == {(one, two, "udp", 53): None}
    ips = elements["service-ips"]
    assert ips[one, "tcp", 80] == "service-x/y"
    assert ips[two, "sctp", 65535] == "drop"
    assert str(ips[one, "udp", 1]).startswith(FOREIGN), "a jump is not a goto"
    assert str(ips[one, 47, 2]).startswith(FOREIGN)
    assert len(ips) == 4
    assert elements["service-nodeports"]["tcp", 30000] == "service-x/y"
    assert str(elements["service-nodeports"]["udp", 30000]).startswith(FOREIGN)
    assert elements["no-endpoint-services"] == {(one, "tcp", 443): "drop"}


def test_thousands_of_elements_are_read_completely(namespace: Namespace) -> None:
    keys = [f"10.{i >> 8}.{i & 255}.1" for i in range(5000)]
    found = load(
        namespace,
        Family.IPV4,
        f"add set T cluster-ips {{ type A ; }}\nadd element T cluster-ips {{ {', '.join(keys)} }}\n",
    )
    assert set(found.mirror.elements["cluster-ips"]) == {(key,) for key in keys}


def test_thousands_of_chains_and_rules_are_read_completely(namespace: Namespace) -> None:
    lines = [f'add chain T service-{i}/x\nadd rule T service-{i}/x accept comment "#abcdefgh"\n' for i in range(3000)]
    for start in range(0, 3000, 300):  # a user namespace limits what goes into one message
        found = load(namespace, Family.IPV4, "".join(lines[start : start + 300]))
    assert found.mirror.chains == {f"service-{i}/x": "abcdefgh" for i in range(3000)}


@families
@pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
def test_slots_and_who_draws_from_them_are_read(namespace: Namespace, family: Family, protocol: str) -> None:
    one, two = {Family.IPV4: ("10.0.0.1", "203.0.113.9"), Family.IPV6: ("2001:db8::1", "fd00::a")}[family]
    ip = WORDS[family][0]
    name, draw, ours = (
        f"endpoints-{protocol}-7",
        f"meta l4proto {protocol} dnat {ip} to numgen random",
        'comment "#abcdefgh"',
    )
    found = load(
        namespace,
        family,
        f"add map T {name} {{ typeof numgen random mod 1 : {ip} daddr . {protocol} dport ; size 1024 ; }}\n"
        f"add element T {name} {{ 0 : {one} . 80, 1 : {two} . 65535, 600 : {one} . 1 }}\n"
        "add chain T service-x/y\nadd chain T service-x/first\nadd chain T service-x/one\n"
        f"add rule T service-x/y {draw} mod 3 offset 598 map @{name} {ours}\n"
        f"add rule T service-x/first {draw} mod 2 offset 0 map @{name} {ours}\n"
        f"add rule T service-x/one accept {ours}\n",
    )
    assert found.slots == {name: {0: Target(one, 80), 1: Target(two, 65535), 600: Target(one, 1)}}
    assert found.capacities == {name: 1024}
    prefix = f"endpoints-{protocol}-"
    assert found.uses == {
        "service-x/y": SlotUse(prefix, SlotRange(7, 598, 3)),
        "service-x/first": SlotUse(prefix, SlotRange(7, 0, 2)),
    }
    assert name in found.mirror.containers
    assert name not in found.mirror.elements


def test_slots_that_lead_to_chains_are_read(namespace: Namespace) -> None:
    found = load(
        namespace,
        Family.IPV4,
        "add map T endpoint-chains-0 { typeof numgen random mod 1 : verdict ; size 1024 ; }\n"
        "add chain T endpoint-x/1\nadd chain T endpoint-x/2\nadd chain T service-x/y\n"
        "add element T endpoint-chains-0 { 5 : goto endpoint-x/1, 6 : goto endpoint-x/2, 7 : drop }\n"
        'add rule T service-x/y numgen random mod 2 offset 5 vmap @endpoint-chains-0 comment "#abcdefgh"\n',
    )
    assert found.slots == {"endpoint-chains-0": {5: "endpoint-x/1", 6: "endpoint-x/2", 7: "drop"}}
    assert found.uses == {"service-x/y": SlotUse("endpoint-chains-", SlotRange(0, 5, 2))}


def test_slot_map_without_a_size_has_room_for_what_is_in_it(namespace: Namespace) -> None:
    found = load(
        namespace,
        Family.IPV4,
        "add map T endpoints-tcp-0 { typeof numgen random mod 1 : ip daddr . tcp dport ; }\n"
        "add element T endpoints-tcp-0 { 2000 : 10.0.0.1 . 80 }\n",
    )
    assert found.capacities["endpoints-tcp-0"] >= 2001


def test_affinity_sets_are_read_without_the_clients_in_them(namespace: Namespace) -> None:
    name = "affinity-AAAAAAAA-ns/web/tcp/__10.0.0.1/80"
    found = load(
        namespace,
        Family.IPV4,
        f"add set T {name} {{ type A ; flags dynamic,timeout ; timeout 10800s ; }}\n"
        f"add element T {name} {{ 10.0.0.9 }}\n",
    )
    assert found.mirror.affinity == {name: 10800}
    assert found.mirror.kinds == {name: "set"}
    assert name not in found.mirror.elements
    assert name not in found.mirror.containers


def test_sets_of_others_are_known_by_name_whatever_is_in_them(namespace: Namespace) -> None:
    found = load(
        namespace,
        Family.IPV4,
        "add set T a { type ifname ; elements = { eth0, eth1 } ; }\n"
        "add set T b { type ipv4_addr ; flags interval ; elements = { 10.0.0.0/8, 192.0.2.1-192.0.2.9 } ; }\n"
        "add map T c { type mark : ipv4_addr ; elements = { 1 : 10.0.0.1 } ; }\n"
        "add set T d { type ipv4_addr . mark ; elements = { 10.0.0.1 . 3 } ; }\n"
        "add set T e { type ether_addr ; flags timeout ; elements = { 02:00:00:00:00:01 timeout 60s } ; }\n",
    )
    assert found.mirror.kinds == {"a": "set", "b": "set", "c": "map", "d": "set", "e": "set"}
    assert set(found.mirror.containers) == {"a", "b", "c", "d", "e"}


def test_anonymous_sets_are_no_objects_of_the_table(namespace: Namespace) -> None:
    found = load(
        namespace,
        Family.IPV4,
        'add chain T services\nadd rule T services ip saddr { 10.0.0.1, 10.0.0.2 } drop comment "#abcdefgh"\n',
    )
    assert found.mirror.kinds == {}


def test_tables_of_others_are_left_out(namespace: Namespace) -> None:
    """Also those of the same family with the same chains and sets, and broken ones nobody could list."""
    namespace.nft(
        "add table ip other\nadd chain ip other services\nadd rule ip other services drop\n"
        "add chain ip other service-x/y\nadd set ip other cluster-ips { type ipv4_addr ; }\n"
        "add element ip other cluster-ips { 10.9.9.9 }\n"
        "add map ip other endpoints-tcp-0 { type mark : verdict ; }\n"
        "add table inet kube-proxy\nadd chain inet kube-proxy inet-chain\n"
        "add set inet kube-proxy inet-set { type ifname ; }\n"
    )
    found = load(
        namespace,
        Family.IPV4,
        "add set T cluster-ips { type A ; }\nadd element T cluster-ips { 10.0.0.1 }\nadd chain T mine\n",
    )
    assert set(found.mirror.chains) == {"mine"}
    assert set(found.mirror.kinds) == {"cluster-ips"}
    assert found.mirror.elements == {"cluster-ips": {("10.0.0.1",): None}}


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("add chain T services\nadd rule T services drop\n", "none of its rules is ours"),
        (
            'add chain T services\nadd rule T services drop comment "masquerade traffic"\n',
            "none of its rules is ours",
        ),
        ("add chain T nat-output { type nat hook output priority -99 ; }\n", "nat-output is hooked otherwise"),
        ("add chain T nat-output\n", "nat-output is hooked otherwise"),
        ("add chain T mine { type filter hook input priority 0 ; }\n", "base chain mine is not ours"),
        ("add set T service-ips { type A ; }\n", "service-ips is declared otherwise"),
        ("add map T service-ips { type A . inet_service : verdict ; }\n", "service-ips is declared otherwise"),
        ("add map T cluster-ips { type A : verdict ; }\n", "cluster-ips is declared otherwise"),
        ("add set T affinity-x/y { type A ; }\n", "affinity-x/y is declared otherwise"),
    ],
)
@families
def test_table_that_cannot_be_brought_to_ours_says_why(
    namespace: Namespace, family: Family, lines: str, reason: str
) -> None:
    with pytest.raises(TableForeignError, match=reason):
        load(namespace, family, lines)


# --- what goes wrong while reading -----------------------------------------------------------------------------------


class Interrupting:
    """Makes the first dumps of one kind fail."""

    def __init__(self, times: int, error: Exception, kind: int = netlink.GET_RULE) -> None:
        self.left, self.error, self.kind, self.calls = times, error, kind, 0
        self.dump = NftSocket.dump

    def __call__(self, sock: NftSocket, kind: int, names: dict[int, str]) -> Iterator[memoryview]:
        found = list(self.dump(sock, kind, names))
        if kind == self.kind:
            self.calls += 1
            if self.left:
                self.left -= 1
                yield from found[: len(found) // 2]
                raise self.error
        yield from found


def interrupt(monkeypatch: pytest.MonkeyPatch, interrupting: Interrupting) -> None:
    def dump(sock: NftSocket, kind: int, names: dict[int, str]) -> Iterator[memoryview]:
        return interrupting(sock, kind, names)

    monkeypatch.setattr(NftSocket, "dump", dump)


LINES = 'add chain T services\nadd rule T services accept comment "#abcdefgh"\n' * 2


@pytest.mark.parametrize("kind", [netlink.GET_TABLE, netlink.GET_CHAIN, netlink.GET_RULE, netlink.GET_SET])
def test_interrupted_dump_is_begun_anew(namespace: Namespace, monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    """Twice interrupted, then whole: what was read in part counts for nothing (B15)."""
    interrupting = Interrupting(2, DumpInterruptedError(), kind)
    interrupt(monkeypatch, interrupting)
    found = load(namespace, Family.IPV4, LINES)
    assert interrupting.calls == 3
    assert found.mirror.chains == {"services": "abcdefgh" * 2}


def test_dump_that_is_always_interrupted_is_an_error_and_no_partial_answer(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupting = Interrupting(1000, DumpInterruptedError())
    interrupt(monkeypatch, interrupting)
    with pytest.raises(ReadBackError, match="kept changing"):
        load(namespace, Family.IPV4, LINES)
    assert 1 < interrupting.calls < 20


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOENT, "No such file or directory"), ReadBackError),
        (OSError(errno.ENOBUFS, "No buffer space available"), ReadBackError),
        (TimeoutError("timed out"), ReadBackError),
        (OSError(errno.EPERM, "Operation not permitted"), PermissionDeniedError),
    ],
)
def test_other_failures_are_errors_of_their_kind(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, error: OSError, kind: type[Exception]
) -> None:
    interrupt(monkeypatch, Interrupting(1000, error))
    with pytest.raises(kind) as caught:
        load(namespace, Family.IPV4, LINES)
    assert type(caught.value) is kind
    assert caught.value.__cause__ is error
