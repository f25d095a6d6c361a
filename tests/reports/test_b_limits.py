"""Transactions: what nft and the kernel bound, and forms of rules that only some of them take."""

import itertools
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from netns.namespaces import CommandError, Namespace
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.objects import Protocol
from nodeproxy.kube.source import Change
from nodeproxy.model.settings import EndpointChains, ProxySettings
from nodeproxy.ruleset.operations import Piece
from nodeproxy.ruleset.render import TEMPLATES
from nodeproxy.ruleset.rules import CLUSTER_IPS
from unit.ruleset import namespaced
from unit.ruleset.pretend_kernel import PretendKernel, RefusedError
from unit.ruleset.refusals import BASE, REFUSALS, Refusal
from unit.sync.support import TABLE_FAMILY, V4, V6, Table, change, endpoints, expected, listing, node, service, view

families = pytest.mark.parametrize("family", [V4, V6], ids=["IPv4", "IPv6"])
always = pytest.mark.parametrize("chains", ["WhenAffinity", "Always"])

NAMESPACE, SERVICE, PORT = "n" * 63, "s" * 63, "p" * 15
"""The longest names that Kubernetes allows: labels of DNS, and the name of a port (RFC 6335)."""
OTHER_SERVICE = SERVICE[:-1] + "t"
LONGEST_PODS = {
    V4: ("192.168.255.254", "192.168.255.253"),
    V6: ("fd00:2440:1111:2222:3333:4444:5555:6666", "fd00:2440:1111:2222:3333:4444:5555:7777"),
}
OUTSIDE = {V4: ("203.0.113.111", "203.0.113.112"), V6: ("2001:db8:1111:2222::111", "2001:db8:1111:2222::112")}
RANGES = {V4: "198.51.100.0/24", V6: "2001:db8:aaaa:bbbb:cccc::/80"}


def longest(family: Family, *, pods: int, affinity: bool = True, name: str = SERVICE) -> list[Change]:
    """A Service whose every name is as long as can be, with all kinds of frontends."""
    external_ip, vip = OUTSIDE[family]
    spec: dict[str, Any] = {
        "type": "LoadBalancer",
        "clusterIP": {V4: "10.96.0.10", V6: "fd00:96::10"}[family],
        "ports": [{"name": PORT, "port": 65535, "nodePort": 32767, "protocol": "SCTP"}],
        "externalIPs": [external_ip],
        "externalTrafficPolicy": "Local",
        "internalTrafficPolicy": "Local",
        "loadBalancerSourceRanges": [RANGES[family]],
    }
    if affinity:
        spec["sessionAffinity"] = "ClientIP"
    status = {"loadBalancer": {"ingress": [{"ip": vip}]}}
    found = [{"addresses": [pod], "nodeName": "node-a"} for pod in LONGEST_PODS[family][:pods]]
    return [
        change("Service", name, NAMESPACE, spec=spec, status=status),
        change(
            "EndpointSlice",
            "e" * 62 + name[-1],
            NAMESPACE,
            metadata={"labels": {"kubernetes.io/service-name": name}},
            addressType=family.label,
            ports=[{"name": PORT, "port": 65535, "protocol": "SCTP"}],
            endpoints=found,
        ),
    ]


def settings(chains: EndpointChains = "WhenAffinity") -> ProxySettings:
    return ProxySettings(cluster_cidrs=("10.244.0.0/16", "fd00:244::/64"), endpoint_chains=chains)


@families
@always
@pytest.mark.parametrize("affinity", [False, True], ids=["no affinity", "affinity"])
@pytest.mark.usefixtures("namespace")
def test_b01_longest_names_fit_into_every_comment(family: Family, chains: EndpointChains, affinity: bool) -> None:
    """kubernetes/kubernetes#139515, #139516: a comment of more than 128 characters had the whole transaction refused.

    With names as long as Kubernetes allows, all that a Service can have is loaded, whatever its endpoints.
    """
    table = Table(settings=settings(chains), family=family)
    comments: list[str] = []
    for pods in (0, 2, 1):
        table.sync(*longest(family, pods=pods, affinity=affinity))
        assert table.proxier.refused() == {}
        assert not table.last.refused
        assert not any("table differs" in event for event, _ in table.journal.warned)
        text = listing(family)
        comments += re.findall(r'comment "([^"]*)"', text)
    assert f"{NAMESPACE}/{SERVICE}:{PORT}"[:128] in comments, "it is named, as far as there is room"
    assert max(len(comment.encode()) for comment in comments) <= 128
    assert re.search(r"(sctp|132) \. 65535 .*: goto external-", text), "it is served"
    table.tidy()
    assert table.again().sync() == []


@families
@pytest.mark.usefixtures("namespace")
def test_b01_comment_that_a_template_makes_too_long_is_cut(family: Family, tmp_path: Path) -> None:
    """kubernetes/kubernetes#139515: comments are cut in one place, whoever wrote them; a remark never fails a sync."""
    templates = tmp_path / "templates"
    shutil.copytree(TEMPLATES, templates)
    for file, line in (("balancing", "meta l4proto tcp counter"), ("external", "counter"), ("firewall", "counter")):
        path = templates / f"{file}.nft.j2"
        path.write_text(path.read_text() + f"\n{line} # {'é' * 100}\n")
    table = Table(*longest(family, pods=2), family=family, templates=templates)
    table.sync()
    assert table.proxier.refused() == {}
    comments = re.findall(r'comment "([^"]*)"', listing(family))
    longest_one = max(comments, key=lambda comment: len(comment.encode()))
    assert longest_one.startswith("é" * 50)
    assert 120 < len(longest_one.encode()) <= 128


@families
@pytest.mark.usefixtures("namespace")
def test_b01_service_whose_comment_is_refused_stops_no_other(family: Family, tmp_path: Path) -> None:
    """kubernetes/kubernetes#139515: a Service whose rules do not load is left out and named; all others are served."""
    templates = tmp_path / "templates"
    shutil.copytree(TEMPLATES, templates)
    path = templates / "transaction.nft.j2"
    before, tag = path.read_text(), "{{ o.rule.tagged_comment }}"
    path.write_text(before.replace(tag, tag + "{% if '/spoilt/' in o.chain %}{{ 'x' * 128 }}{% endif %}"))
    assert path.read_text() != before
    objects: list[Change] = []
    for number, name in enumerate(("first", "spoilt", "third"), start=1):
        objects += [service(name, number, family=family), endpoints(name, [1, 2], family=family)]
    table = Table(*objects, family=family, templates=templates)
    table.sync()
    ((name, refusal),) = table.proxier.refused().items()
    assert str(name) == "ns/spoilt"
    assert "comment too long" in refusal.reason
    dispatch = listing(family)
    assert re.findall(r": goto service-\w+-ns/(\w+)/tcp/", dispatch) in (["first", "third"], ["third", "first"])


COUNTS = (0, 1, 2, 3)
PROTOCOLS: tuple[Protocol, ...] = ("TCP", "UDP", "SCTP")


@families
@always
@pytest.mark.usefixtures("namespace")
def test_b10_every_form_of_rule_is_loaded_in_both_families(family: Family, chains: EndpointChains) -> None:
    """kubernetes/kubernetes#140951, #140723: a statement that nft took for IPv4 made it abort for IPv6.

    Every number of endpoints with and without affinity, over each protocol, is loaded by the libnftables that is there,
    and so is every change from one number to the next.
    """
    combinations = [*itertools.product((False, True), PROTOCOLS, COUNTS)]
    table = Table(node(), settings=settings(chains), family=family)
    for shift in range(len(COUNTS)):
        objects: list[Change] = []
        wanted: dict[str, int] = {}
        for number, (affinity, protocol, count) in enumerate(combinations, start=1):
            count_now = (count + shift) % len(COUNTS)
            name = f"s{number}"
            spec: dict[str, Any] = {"sessionAffinity": "ClientIP"} if affinity else {}
            spec |= {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30000 + number, "protocol": protocol}]}
            objects += [
                service(name, number, family=family, **spec),
                endpoints(name, range(1, count_now + 1), family=family, protocol=protocol),
            ]
            wanted[f"{name}/{protocol.lower()}/"] = count_now
        table.sync(*objects)
        assert table.proxier.refused() == {}
        table.tidy()
        held = view(family)
        assert {name: _choices(held, name) for name in wanted} == wanted
    assert held == expected(table)


def _choices(held: dict[str, Any], service_port: str) -> int:
    """Among how many endpoints a service port's chain chooses; 0 if it has none."""
    found = [rules for name, (_, rules) in held.items() if re.match(rf"chain service-\w+-ns/{service_port}$", name)]
    if not found:
        return 0
    choice = found[0][-1][-1]
    if "vmap" in choice:
        return len(choice["vmap"])
    if "goto" in choice:
        return 1
    address = choice["dnat"]["addr"]
    return len(address["map"]) if isinstance(address, dict) else 1


OVERLAPPING: dict[Family, list[list[str]]] = {
    V4: [
        ["192.168.0.0/16"],
        ["192.168.0.0/16", "192.168.82.2/32"],
        ["192.168.82.2/32", "192.168.0.0/16", "192.168.82.0/24", "192.168.0.0/16"],
        ["0.0.0.0/0", "192.168.0.0/16"],
        ["192.168.82.2/32"],
    ],
    V6: [
        ["fd00:168::/32"],
        ["fd00:168::/32", "fd00:168::2/128"],
        ["fd00:168::2/128", "fd00:168::/32", "fd00:168::/64", "fd00:168::/32"],
        ["::/0", "fd00:168::/32"],
        ["fd00:168::2/128"],
    ],
}


@families
@pytest.mark.usefixtures("namespace")
def test_b12_source_ranges_that_overlap_are_loaded_at_once_and_one_after_the_other(family: Family) -> None:
    """projectcalico/calico#12851, #12650: an address within a range that a set already had was refused."""
    vip = OUTSIDE[family][1]

    def guarded(ranges: Sequence[str]) -> Change:
        return service(
            "guarded", 5, family=family, type="LoadBalancer", vips=[vip], loadBalancerSourceRanges=list(ranges)
        )

    table = Table(endpoints("guarded", [1, 2], family=family), family=family)
    there_and_back = OVERLAPPING[family] + OVERLAPPING[family][-2::-1]
    for number, ranges in enumerate(there_and_back):
        table.sync(guarded(ranges))
        assert table.proxier.refused() == {}
        assert table.last.full is (number == 0), "nothing was refused on the way"
        (rules,) = [held[1] for name, held in view(family).items() if re.match("chain firewall-.*/", name)]
        assert rules[-1] == [{"drop": None}]
        allowed = {str(_range(rule[0]["match"]["right"])) for rule in rules[:-1]}
        single = {"fd00:168::2/128", "192.168.82.2/32"}
        assert {found.partition("/")[0] if found in single else found for found in ranges} <= allowed


def _range(right: Any) -> Any:
    """An operand of a comparison as ``nft -j`` lists it: an address, or a range as text."""
    return f"{right['prefix']['addr']}/{right['prefix']['len']}" if isinstance(right, dict) else right


@families
@pytest.mark.usefixtures("namespace")
def test_b12_no_named_set_of_ranges_is_used_since_the_kernel_refuses_overlaps_there(
    family: Family, namespace: Namespace
) -> None:
    """projectcalico/calico#12851: the kernel refuses a range within another, in one transaction and in two."""
    ranges = OVERLAPPING[family][1]
    kind, address = TABLE_FAMILY[family], {V4: "ipv4_addr", V6: "ipv6_addr"}[family]
    declared = f"add table {kind} t\nadd set {kind} t s {{ type {address} ; flags interval ; }}\n"
    with pytest.raises(CommandError, match=r"overlap|conflicting intervals|File exists"):
        namespace.nft(f"{declared}add element {kind} t s {{ {', '.join(ranges)} }}\n")
    namespace.nft(f"{declared}add element {kind} t s {{ {ranges[0]} }}\n")
    with pytest.raises(CommandError, match=r"overlap|conflicting intervals|File exists"):
        namespace.nft(f"add element {kind} t s {{ {ranges[1]} }}\n")
    table = Table(*longest(family, pods=2), settings=settings("Always"), family=family)
    table.sync()
    declarations = [held[0] for name, held in view(family).items() if name.startswith(("set ", "map "))]
    assert any(declared["name"] == CLUSTER_IPS for declared in declarations)
    assert not any("interval" in declared.get("flags", []) for declared in declarations)


@pytest.fixture(scope="module")
def real_outcomes() -> dict[str, str]:
    """What the real kernel makes of each of these operations."""
    found: dict[str, str] = json.loads(namespaced.run_module("unit.ruleset.refusals"))
    return found


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.name)
def test_b12_tests_use_a_kernel_that_refuses_what_the_real_one_refuses(
    refusal: Refusal, real_outcomes: dict[str, str]
) -> None:
    """projectcalico/calico#13277: the fault went unseen since the double in the tests took what the kernel refuses."""
    assert real_outcomes[refusal.name] == "refused"
    pretended = PretendKernel()
    pretended.apply(Piece([*BASE, *refusal.setup]))
    with pytest.raises(RefusedError):
        pretended.apply(Piece([refusal.refused]))


@families
@always
@pytest.mark.usefixtures("namespace")
def test_b19_longest_names_of_objects_fit_and_differ(family: Family, chains: EndpointChains) -> None:
    """crowdsecurity/cs-firewall-bouncer#285: names too long for the kernel had sets refused.

    Two Services and two endpoints of each, which differ in the last character only, have chains and sets of their own.
    """
    _, slices = longest(family, pods=2, name=OTHER_SERVICE)
    spec: dict[str, Any] = {
        "clusterIP": {V4: "10.96.0.11", V6: "fd00:96::11"}[family],
        "ports": [{"name": PORT, "port": 65535, "protocol": "SCTP"}],
        "sessionAffinity": "ClientIP",
    }
    twin = change("Service", OTHER_SERVICE, NAMESPACE, spec=spec)
    table = Table(*longest(family, pods=2), twin, slices, settings=settings(chains), family=family)
    table.sync()
    assert table.proxier.refused() == {}
    held = view(family)
    names = [name.partition(" ")[2] for name in held]
    assert max(map(len, names)) <= 255
    assert max(map(len, names)) == {V4: 189, V6: 213}[family], "nothing has to be cut"
    for prefix in ("endpoint-", "affinity-"):
        assert sum(name.startswith(prefix) and "/" in name for name in names) == 4
    assert sum(name.startswith("service-") and "/" in name for name in names) == 2
    table.tidy()
    assert table.again().sync() == []


@families
@pytest.mark.parametrize("kind", ["chain", "set"])
def test_b19_kernel_takes_names_of_255_bytes_and_no_more(namespace: Namespace, family: Family, kind: str) -> None:
    """crowdsecurity/cs-firewall-bouncer#285: what names are bounded for."""
    ip, body = TABLE_FAMILY[family], "{ type inet_service ; }" if kind == "set" else ""
    namespace.nft(f"add table {ip} t\nadd {kind} {ip} t {'x' * 255} {body}\n")
    with pytest.raises(CommandError, match="Numerical result out of range"):
        namespace.nft(f"add {kind} {ip} t {'x' * 256} {body}\n")
