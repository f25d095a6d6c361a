"""kube-proxy's tables by themselves, no agent here: those it wrote, and those that tests write in its layout."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from layouts import kube_proxy
from layouts.services import Endpoint, Service, hashed
from netns import addresses as plan
from netns.addresses import FAMILIES, Family
from netns.manifests import Manifest
from netns.probe import Answer, Dropped, Flow, Outcome, Rejected, Unreachable, probe
from netns.recorded import RELEASES, TARGET, Release, clear, recorded_objects, recording
from netns.servers import Protocol
from netns.takeover import layout_node, layout_services
from netns.world import World
from nodeproxy.kube.addresses import Family as ProxyFamily
from unit.sync.support import view

PROTOCOLS: tuple[Protocol, Protocol] = ("TCP", "UDP")
INSIDE, OUTSIDE = plan.host(plan.INSIDE, 20), plan.host(plan.OUTSIDE, 2)


@pytest.fixture(scope="module")
def ground() -> Iterator[World]:
    with World(nodes=2, pods=3) as world:
        world.serve_pods(TARGET)
        yield world


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> Release:
    """A release of kube-proxy."""
    found: Release = request.param
    return found


@pytest.fixture
def world(ground: World, release: Release) -> World:
    """A world whose node-a has the tables that kube-proxy of a release wrote."""
    recording(release).load(ground.node("node-a").namespace)
    return ground


ANY = frozenset({"pod-a1", "pod-b1"})
Fate = frozenset[str] | type[Rejected | Dropped | Unreachable]
NODE = plan.node_address(0)
CASES: dict[str, tuple[str, plan.Pair, int, Fate, bool, plan.Pair | None]] = {
    # who, to where, port, who may answer or what else happens, whether masqueraded, source
    "pod to one": ("pod-a2", plan.host(plan.SERVICES, 92), 80, frozenset({"pod-a1"}), False, None),
    "pod to itself": ("pod-a1", plan.host(plan.SERVICES, 92), 80, frozenset({"pod-a1"}), True, None),
    "node to two": ("node-a", plan.host(plan.SERVICES, 42), 80, ANY, True, None),
    "outside to two": ("client", plan.host(plan.SERVICES, 42), 80, ANY, True, None),
    "outside to a NodePort": ("client", NODE, 30042, ANY, True, None),
    "pod to a NodePort": ("pod-b1", NODE, 30042, ANY, True, None),
    "outside to a Local VIP": ("client", plan.host(plan.VIPS, 43), 80, frozenset({"pod-a1"}), False, None),
    "outside to a Local externalIP": (
        "client",
        plan.host(plan.EXTERNAL_IPS, 43),
        80,
        frozenset({"pod-a1"}),
        False,
        None,
    ),
    "outside to a Local NodePort": ("client", NODE, 30043, frozenset({"pod-a1"}), False, None),
    "pod to a Local VIP": ("pod-a2", plan.host(plan.VIPS, 43), 80, ANY, False, None),
    "node to a Local VIP": ("node-a", plan.host(plan.VIPS, 43), 80, ANY, True, None),
    "outside to a Local VIP without local endpoints": ("client", plan.host(plan.VIPS, 44), 80, Dropped, False, None),
    "pod to a Local VIP without local endpoints": (
        "pod-a1",
        plan.host(plan.VIPS, 44),
        80,
        frozenset({"pod-b1"}),
        False,
        None,
    ),
    "inside of ranges": ("client", plan.host(plan.VIPS, 45), 80, frozenset({"pod-a1", "pod-a2"}), True, INSIDE),
    "outside of ranges": ("client", plan.host(plan.VIPS, 45), 80, Dropped, False, OUTSIDE),
    "node in ranges": ("node-a", plan.host(plan.VIPS, 45), 80, frozenset({"pod-a1", "pod-a2"}), True, None),
    "no endpoints": ("pod-a1", plan.host(plan.SERVICES, 46), 80, Rejected, False, None),
    "no endpoints, NodePort": ("client", NODE, 30046, Rejected, False, None),
    "no endpoints, VIP": ("client", plan.host(plan.VIPS, 46), 80, Rejected, False, None),
    "pod to internal Local": ("pod-a1", plan.host(plan.SERVICES, 47), 80, frozenset({"pod-a2"}), False, None),
    "pod to internal Local without local endpoints": ("pod-a1", plan.host(plan.SERVICES, 97), 80, Dropped, False, None),
    "other port of a ClusterIP": ("pod-a1", plan.host(plan.SERVICES, 92), 81, Rejected, False, None),
    "unallocated ClusterIP": ("pod-a1", plan.host(plan.SERVICES, 99), 80, Dropped, False, None),
    "IPv4 only": ("pod-a2", plan.host(plan.SERVICES, 52), 80, ANY, False, None),
    "IPv6 only": ("pod-a2", plan.host(plan.SERVICES, 53), 80, ANY, False, None),
}
# 1.31 does not know ServiceCIDRs: what no rule takes goes on to the router, which knows no way.
_ELSEWHERE: dict[Release, Fate] = {"1.31": Unreachable, "1.37": Dropped}
_OF_ONE_FAMILY: dict[str, Family] = {"IPv4 only": 4, "IPv6 only": 6}


@pytest.mark.parametrize("family", FAMILIES)
def test_packets_through_the_table_alone(world: World, family: Family, release: Release) -> None:
    """Every kind of frontend serves, rejects, drops and masquerades: what the clients of the other tests rely on."""
    hosts = {"client": world.client, **world.nodes, **world.pods}
    flows = [
        (name, Flow(hosts[who].namespace, to.of(family), port, protocol, source and source.of(family)))
        for name, (who, to, port, _, _, source) in CASES.items()
        for protocol in PROTOCOLS
    ]
    outcomes = probe([flow for _, flow in flows], 1.0)
    wrong = [
        (name, flow.protocol, outcome)
        for (name, flow), outcome in zip(flows, outcomes, strict=True)
        if not _fits(outcome, _fate(name, family, release), masqueraded=CASES[name][4])
    ]
    assert wrong == []


def _fate(name: str, family: Family, release: Release) -> Fate:
    nowhere = name == "unallocated ClusterIP" or _OF_ONE_FAMILY.get(name, family) != family
    return _ELSEWHERE[release] if nowhere else CASES[name][3]


def _fits(outcome: Outcome, fate: Fate, *, masqueraded: bool) -> bool:
    if isinstance(fate, frozenset):
        return isinstance(outcome, Answer) and outcome.name in fate and outcome.masqueraded == masqueraded
    return isinstance(outcome, fate)


@pytest.mark.parametrize("family", FAMILIES)
def test_affinity_of_the_table_alone(world: World, family: Family) -> None:
    """A client stays with its endpoint, on every frontend of the Service."""
    client, node = world.client.namespace, plan.node_address(0).of(family)
    source = plan.host(plan.INSIDE, 21).of(family)
    flows = [
        Flow(client, address, port, "TCP", source)
        for address, port in ((node, 30045), (plan.host(plan.SERVICES, 45).of(family), 80))
        for _ in range(10)
    ]
    (first,) = probe(flows[:1], 1.0)
    assert isinstance(first, Answer)
    names = {outcome.name if isinstance(outcome, Answer) else outcome for outcome in probe(flows, 1.0)}
    assert names == {first.name}


@pytest.mark.parametrize(
    ("full", "base"),
    [
        ("ns1/svc1/tcp/p80", "ULMVA6XW-ns1/svc1/tcp/p80"),
        ("kube-system/kube-dns/udp/dns", "FY5PMXPG-kube-system/kube-dns/udp/dns"),
        ("ns4/svc4/tcp/p80__10.180.0.5/80", "5RFCDDV7-ns4/svc4/tcp/p80__10.180.0.5/80"),
        ("ns1/svc1/tcp/p80__fd00.10.180..1/80", "ZVRFLKHO-ns1/svc1/tcp/p80__fd00.10.180..1/80"),
    ],
)
def test_names_are_the_ones_that_kube_proxy_gives(full: str, base: str) -> None:
    """The hash is the one known from kube-proxy's own tables."""
    assert hashed(full) == base


def _understood(objects: Iterable[Manifest]) -> list[Manifest]:
    """The objects that the writer of layouts understands: no endpoint but ready ones, no hints, a ClusterIP."""
    objects = [one for one in objects if one["metadata"].get("namespace") == "test"]
    odd = {
        one["metadata"]["labels"]["kubernetes.io/service-name"]
        for one in objects
        if one["kind"] == "EndpointSlice"
        and any(end["conditions"] != {"ready": True} or "hints" in end for end in one["endpoints"] or ())
    }
    odd |= {
        one["metadata"]["name"]
        for one in objects
        if one["kind"] == "Service" and one["spec"].get("clusterIP", "None") == "None"
    }
    owner = "kubernetes.io/service-name"
    return [one for one in objects if one["metadata"].get("labels", {}).get(owner, one["metadata"]["name"]) not in odd]


_RANGES: dict[Release, dict[Family, tuple[str, ...]]] = {
    "1.31": {4: (), 6: ()},
    "1.37": {4: ("10.96.0.0/16", plan.SERVICES.v4), 6: ("fd00:10:96::/112", plan.SERVICES.v6)},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_tables_that_tests_write_are_those_that_kube_proxy_writes(
    ground: World, release: Release, family: Family
) -> None:
    """Chain by chain, set by set: for every Service that the writer understands, the same rules and elements."""
    node = ground.node("node-a")
    objects = _understood(recorded_objects())
    names = {one["metadata"]["name"] for one in objects if one["kind"] == "Service"}
    assert len(names) > 15
    with node.namespace.enter():
        recording(release).load(node.namespace)
        theirs = view(ProxyFamily(family))
        clear(node.namespace)
        described = replace(layout_node(node, family), service_ranges=_RANGES[release][family])
        services = layout_services(objects, family, node.name)
        node.namespace.nft(kube_proxy.table_text(family, services, release, described))
        ours = view(ProxyFamily(family))
    missing = {name for name in theirs.keys() - ours.keys() if _service_of(name) in ("", *names)}
    assert missing == set()
    for name, (declared, content) in ours.items():
        assert name in theirs
        if (_service_of(name) and not name.startswith("set affinity-")) or name.startswith(
            "chain "
        ):  # which has clients
            assert (declared, content) == theirs[name], name
        else:
            assert declared == theirs[name][0], name
            assert [one for one in content if one not in theirs[name][1]] == [], name


def _service_of(name: str) -> str:
    """The Service that a chain or set is of; empty: none."""
    return name.partition("-test/")[2].partition("/")[0] or name.partition("-default/")[2].partition("/")[0]


@pytest.mark.parametrize("version", RELEASES)
def test_pieces_make_the_same_table(version: Release) -> None:
    """Loaded in pieces, the table is the one that loads as a whole."""
    services = [
        Service("ns", f"svc-{number}", f"172.30.0.{number}", 80, (Endpoint("10.180.1.10", 80, local=True),), vips=vips)
        for number in range(1, 24)
        for vips in [(f"192.0.2.{number}",) if number % 2 else ()]
    ]
    texts = list(kube_proxy.pieces(4, services, 10, version))
    assert len(texts) == 4
    assert "".join(texts) == kube_proxy.table_text(4, services, version)


def test_text_of_ten_thousand_services_takes_seconds_at_most() -> None:
    """The text is made fast enough for a benchmark to make it each time."""
    services = [
        Service(
            f"ns-{number // 50}",
            f"svc-{number}",
            f"10.96.{number // 250}.{number % 250 + 1}",
            80,
            tuple(Endpoint(f"10.128.{number // 250}.{end + 1}", 8080) for end in range(10)),
        )
        for number in range(10_000)
    ]
    started = time.process_time()
    text = kube_proxy.table_text(4, services)
    assert time.process_time() - started < 10
    assert text.count("numgen random mod 10 map") == 10_000
