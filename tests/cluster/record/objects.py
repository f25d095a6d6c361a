"""The objects that recordings are made of: every type and policy of a Service, and endpoints in every condition.

Everything that an API server would otherwise choose (ClusterIPs, node ports, health check ports) is given. So two
recordings differ by what differs in the releases, by the order of what is listed, and by whom clients came to reach.
"""

from collections.abc import Iterable, Sequence

from netns import addresses as plan
from netns.addresses import FAMILIES, Family
from netns.manifests import Manifest, backends, both, endpoint, endpoint_slice, node, port, service
from netns.recorded import RANGES, TARGET
from netns.world import Host, World

_DUAL = {"ipFamilyPolicy": "RequireDualStack"}
_NO_NODE_PORTS = {"allocateLoadBalancerNodePorts": False}
_CONDITIONS = {
    "ready": {"ready": True, "serving": True, "terminating": False},
    "not ready": {"ready": False, "serving": False, "terminating": False},
    "leaving": {"ready": False, "serving": True, "terminating": True},
    "gone": {"ready": False, "serving": False, "terminating": True},
}


def surroundings(world: World) -> list[Manifest]:
    """The Nodes, each in a zone of its own, and the ServiceCIDR that the Services' addresses are from."""
    zones = {name: f"zone-{name[-1]}" for name in world.nodes}
    return [
        *(node(one, **{"topology.kubernetes.io/zone": zones[name]}) for name, one in world.nodes.items()),
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "ServiceCIDR",
            "metadata": {"name": "recorded"},
            "spec": {"cidrs": list(plan.SERVICES)},
        },
    ]


def objects(world: World) -> list[Manifest]:
    """Services and EndpointSlices, behind which stand pods of a world of two nodes with three pods each."""
    return [*_plain(world), *_odd(world)]


def _plain(world: World) -> Iterable[Manifest]:
    a1, a2, b1 = pods = [world.pod(name) for name in ("pod-a1", "pod-a2", "pod-b1")]
    ranges = list(RANGES)
    shapes: list[tuple[Manifest, Sequence[Host]]] = [
        (_service("shared", 91, both(80, node_port=30091)), pods),
        (_service("single", 92, both(80)), [a1]),
        (_service("sticky", 93, both(80, node_port=30093), affinity_seconds=600), pods),
        (
            _service(
                "balanced",
                94,
                both(80, node_port=30094),
                vips=[plan.host(plan.VIPS, 94)],
                externalTrafficPolicy="Local",
                healthCheckNodePort=31094,
                loadBalancerSourceRanges=ranges,
            ),
            pods,
        ),
        (_service("outside", 95, both(80), externalIPs=list(plan.host(plan.EXTERNAL_IPS, 95))), [a2, b1]),
        (_service("empty", 96, both(80, node_port=30096)), []),
        (_service("nowhere", 97, both(80), internalTrafficPolicy="Local"), [b1]),
        (
            _service(
                "closed",
                98,
                both(80),
                vips=[plan.host(plan.VIPS, 98)],
                loadBalancerSourceRanges=list(plan.OUTSIDE),
                **_NO_NODE_PORTS,
            ),
            pods,
        ),
        (_service("two", 42, both(80, node_port=30042)), [a1, b1]),
        (
            _service(
                "local",
                43,
                both(80, node_port=30043),
                vips=[plan.host(plan.VIPS, 43)],
                externalIPs=list(plan.host(plan.EXTERNAL_IPS, 43)),
                externalTrafficPolicy="Local",
                healthCheckNodePort=31043,
            ),
            [a1, b1],
        ),
        (
            _service(
                "remote",
                44,
                both(80),
                vips=[plan.host(plan.VIPS, 44)],
                externalTrafficPolicy="Local",
                healthCheckNodePort=31044,
                **_NO_NODE_PORTS,
            ),
            [b1],
        ),
        (
            _service(
                "ranges",
                45,
                both(80, node_port=30045),
                vips=[plan.host(plan.VIPS, 45)],
                affinity_seconds=600,
                loadBalancerSourceRanges=[*plan.INSIDE, *plan.UNDERLAY],
            ),
            [a1, a2],
        ),
        (_service("lonely", 46, both(80, node_port=30046), vips=[plan.host(plan.VIPS, 46)]), []),
        (_service("inside", 47, both(80), internalTrafficPolicy="Local"), [a2, b1]),
    ]
    return [one for shape, hosts in shapes for one in (shape, *backends(shape, hosts, TARGET))]


def _odd(world: World) -> Iterable[Manifest]:
    """Other protocols, one family only, several ports, both policies Local, endpoints that are not simply ready."""
    a1, a2, b1 = (world.pod(name) for name in ("pod-a1", "pod-a2", "pod-b1"))
    sctp = {"name": "p80-sctp", "port": 80, "protocol": "SCTP", "nodePort": 30051}
    shapes: list[tuple[Manifest, Sequence[Host]]] = [
        (_service("sctp", 51, [sctp], vips=[plan.host(plan.VIPS, 51)]), [a1, b1]),
        (service("four", 52, both(80), families=(4,), ipFamilyPolicy="SingleStack"), [a1, b1]),
        (service("six", 53, both(80), families=(6,), ipFamilyPolicy="SingleStack"), [a1, b1]),
        (
            _service(
                "both-local",
                54,
                [port(80, node_port=30054)],
                affinity_seconds=10800,
                externalTrafficPolicy="Local",
                internalTrafficPolicy="Local",
            ),
            [a1, a2, b1],
        ),
        (_service("headless", 55, both(80), clusterIP="None", clusterIPs=["None"]), [a1]),
    ]
    yield from (one for shape, hosts in shapes for one in (shape, *backends(shape, hosts, TARGET)))
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "alias", "namespace": "test"},
        "spec": {"type": "ExternalName", "externalName": "elsewhere.example"},
    }
    yield _service("without-slices", 56, [port(80)])
    yield _service("ports", 57, [port(80), port(443), port(53, "UDP", name="dns")])
    yield from _slices("ports", {a1: "ready", b1: "ready"}, {"p80": 8080, "p443": 8080, "dns": 8080}, udp=("dns",))
    yield _service("conditions", 58, [port(80)])
    yield from _slices("conditions", {a1: "ready", a2: "not ready", b1: "leaving"}, {"p80": TARGET})
    yield _service("leaving", 59, [port(80, node_port=30059)], externalTrafficPolicy="Local")
    yield from _slices("leaving", {a1: "leaving", b1: "ready"}, {"p80": TARGET})
    yield _service("all-leaving", 60, [port(80)])
    yield from _slices("all-leaving", {a1: "leaving", b1: "gone"}, {"p80": TARGET})
    yield _service("hinted", 61, [port(80)], trafficDistribution="PreferClose")
    yield from _slices("hinted", {a1: "ready", a2: "ready", b1: "ready"}, {"p80": TARGET}, hints=True)


def _service(name: str, number: int, ports: Sequence[Manifest], **fields: object) -> Manifest:
    return service(name, number, ports, **_DUAL, **fields)


def _slices(
    name: str, hosts: dict[Host, str], targets: dict[str, int], *, udp: Sequence[str] = (), hints: bool = False
) -> list[Manifest]:
    """Slices of both families."""
    ports = [
        {"name": one, "port": number, "protocol": "UDP" if one in udp else "TCP"} for one, number in targets.items()
    ]
    return [
        endpoint_slice(name, family, [_end(host, family, state, hints=hints) for host, state in hosts.items()], ports)
        for family in FAMILIES
    ]


def _end(host: Host, family: Family, state: str, *, hints: bool) -> Manifest:
    zone = f"zone-{host.name.removeprefix('pod-')[0]}"
    hinted = {"zone": zone, "hints": {"forZones": [{"name": zone}]}} if hints else {}
    return endpoint(host, family, conditions=_CONDITIONS[state], **hinted)
