"""kube-proxy's tables, as the tests write them, load and work by themselves: no agent here."""

import time
from collections.abc import Iterator

import pytest

from layouts import kube_proxy
from layouts.kube_proxy import Version
from layouts.services import Endpoint, Service, hashed
from netns import addresses as plan
from netns.addresses import FAMILIES, Family
from netns.manifests import Manifest, backends, both, service
from netns.probe import Answer, Dropped, Flow, Outcome, Rejected, probe
from netns.servers import Protocol
from netns.takeover import tables
from netns.world import World

VERSIONS: tuple[Version, Version] = ("1.31", "1.37")
PROTOCOLS: tuple[Protocol, Protocol] = ("TCP", "UDP")
TARGET = 8080
INSIDE, OUTSIDE = plan.host(plan.INSIDE, 2), plan.host(plan.OUTSIDE, 2)


def _manifests(world: World) -> list[Manifest]:
    a1, a2, b1 = (world.pod(name) for name in ("pod-a1", "pod-a2", "pod-b1"))
    shapes = [
        (service("one", 41, both(80)), [a1]),
        (service("two", 42, both(80, node_port=30042)), [a1, b1]),
        (
            service(
                "local",
                43,
                both(80, node_port=30043),
                vips=[plan.host(plan.VIPS, 43)],
                externalIPs=list(plan.host(plan.EXTERNAL_IPS, 43)),
                externalTrafficPolicy="Local",
            ),
            [a1, b1],
        ),
        (
            service("remote", 44, both(80), vips=[plan.host(plan.VIPS, 44)], externalTrafficPolicy="Local"),
            [b1],
        ),
        (
            service(
                "ranges",
                45,
                both(80, node_port=30045),
                vips=[plan.host(plan.VIPS, 45)],
                affinity_seconds=600,
                loadBalancerSourceRanges=[*plan.INSIDE, *plan.UNDERLAY],
            ),
            [a1, a2],
        ),
        (service("empty", 46, both(80, node_port=30046), vips=[plan.host(plan.VIPS, 46)]), []),
        (service("inside", 47, both(80), internalTrafficPolicy="Local"), [a2, b1]),
        (service("nowhere", 48, both(80), internalTrafficPolicy="Local"), [b1]),
    ]
    return [one for shape, hosts in shapes for one in (shape, *backends(shape, hosts, TARGET))]


@pytest.fixture(scope="module", params=VERSIONS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A world whose node-a has the tables of a release."""
    with World(nodes=2, pods=2) as world:
        world.serve_pods(TARGET)
        for text in tables(_manifests(world), world.node("node-a"), request.param):
            world.node("node-a").namespace.nft(text)
        yield world


ANY = frozenset({"pod-a1", "pod-b1"})
Fate = frozenset[str] | type[Rejected | Dropped]
NODE = plan.node_address(0)
CASES: dict[str, tuple[str, plan.Pair, int, Fate, bool, plan.Pair | None]] = {
    # who, to where, port, who may answer or what else happens, whether masqueraded, source
    "pod to one": ("pod-a2", plan.host(plan.SERVICES, 41), 80, frozenset({"pod-a1"}), False, None),
    "pod to itself": ("pod-a1", plan.host(plan.SERVICES, 41), 80, frozenset({"pod-a1"}), True, None),
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
    "pod to internal Local without local endpoints": ("pod-a1", plan.host(plan.SERVICES, 48), 80, Dropped, False, None),
    "other port of a ClusterIP": ("pod-a1", plan.host(plan.SERVICES, 41), 81, Rejected, False, None),
    "unallocated ClusterIP": ("pod-a1", plan.host(plan.SERVICES, 99), 80, Dropped, False, None),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_packets_through_the_table_alone(world: World, family: Family) -> None:
    """Every kind of frontend serves, rejects, drops and masquerades as kube-proxy's does."""
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
        if not _fits(outcome, *CASES[name][3:5])
    ]
    assert wrong == []


def _fits(outcome: Outcome, fate: Fate, masqueraded: bool) -> bool:
    if isinstance(fate, frozenset):
        return isinstance(outcome, Answer) and outcome.name in fate and outcome.masqueraded == masqueraded
    return isinstance(outcome, fate)


@pytest.mark.parametrize("family", FAMILIES)
def test_affinity_of_the_table_alone(world: World, family: Family) -> None:
    """A client stays with its endpoint, on every frontend of the Service."""
    client, node = world.client.namespace, plan.node_address(0).of(family)
    source = plan.host(plan.INSIDE, 9).of(family)
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


@pytest.mark.parametrize("version", VERSIONS)
def test_pieces_make_the_same_table(version: Version) -> None:
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
