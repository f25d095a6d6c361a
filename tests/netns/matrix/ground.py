"""The cells' Services as manifests, their addresses, and a network in which every source and answer has a way.

Beyond :class:`netns.world.World`: node-b's and node-c's ways to everybody lead through node-a, so that an answer is
seen by the connection tracking there even where nothing was masqueraded. The addresses with ipMode Proxy are the
router's. node-a answers itself on all NodePorts: on an address that accepts none, that is who is reached.
"""

from collections.abc import Sequence

from netns import addresses as plan
from netns.addresses import FAMILIES, Family, Pair
from netns.manifests import Manifest, endpoint, endpoint_slice, node, port, service, service_cidr
from netns.matrix.axes import (
    HERE,
    Backend,
    Condition,
    Detector,
    EndpointChains,
    Kind,
    NodePorts,
    Ranges,
    Settings,
    Source,
    Target,
)
from netns.matrix.cells import Cell, Shape, every_cell, unique
from netns.matrix.expectation import SOURCE_ADDRESSES
from netns.matrix.sctp import SctpServers
from netns.world import BRIDGE, Host, Pod, World

PORT, OTHER_PORT, TARGET_PORT = 80, 81, 8080
UNALLOCATED = 199
PROTOCOLS = ("TCP", "UDP", "SCTP")
LOOPBACK = Pair("127.0.0.1", "::1")
PREFIX = BRIDGE.rstrip("0123456789")
OWN_INTERFACE = f"{PREFIX}9"
_OWN_INTERFACE_ADDRESS = Pair("10.99.0.1", "fd00:10:99::1")

_PROXIED = {cell.shape for cell in every_cell() if cell.target is Target.PROXY_VIP}
SHAPES: tuple[Shape, ...] = tuple(
    sorted(unique(cell.shape for cell in every_cell()), key=lambda shape: (shape not in _PROXIED, str(shape)))
)
"""Every Service, in the order of their numbers: first those with an address of ipMode Proxy."""
_NUMBERS = {shape: number for number, shape in enumerate(SHAPES, 1)}


def number(shape: Shape) -> int:
    """Says which of all addresses and NodePorts are a Service's."""
    return _NUMBERS[shape]


def vip(shape: Shape) -> Pair:
    """The load balancer's addresses."""
    return plan.host(plan.VIPS, number(shape))


def proxied_vip(shape: Shape) -> Pair:
    """The load balancer's addresses with ipMode Proxy: of the pool of external IPs, from the other end."""
    return plan.host(plan.EXTERNAL_IPS, 251 - number(shape))


def external_ip(shape: Shape) -> Pair:
    """The external IPs."""
    return plan.host(plan.EXTERNAL_IPS, number(shape))


def destination(cell: Cell) -> tuple[str, int]:
    """Address and port that a cell dials."""
    node_port = 30000 + number(cell.shape)
    cluster_ip = plan.host(plan.SERVICES, number(cell.shape))
    to: dict[Target, tuple[Pair, int]] = {
        Target.CLUSTER_IP: (cluster_ip, PORT),
        Target.EXTERNAL_IP: (external_ip(cell.shape), PORT),
        Target.VIP: (vip(cell.shape), PORT),
        Target.NODE_PORT: (plan.node_address(0), node_port),
        Target.NODE_PORT_SECONDARY: (plan.node_secondary(0), node_port),
        Target.NODE_PORT_BRIDGE: (plan.pod_gateway(0), node_port),
        Target.NODE_PORT_LOOPBACK: (LOOPBACK, node_port),
        Target.OTHER_PORT: (cluster_ip, OTHER_PORT),
        Target.UNALLOCATED: (plan.host(plan.SERVICES, UNALLOCATED), PORT),
        Target.VIP_OTHER_PORT: (vip(cell.shape), OTHER_PORT),
        Target.EXTERNAL_IP_OTHER_PORT: (external_ip(cell.shape), OTHER_PORT),
    }
    pair, number_ = (proxied_vip(cell.shape), PORT) if cell.target is Target.PROXY_VIP else to[cell.target]
    return pair.of(cell.family), number_


def source_address(cell: Cell) -> str | None:
    """The address that a cell dials from; None: what routing chooses."""
    if cell.target is Target.NODE_PORT_LOOPBACK:
        return None
    pair = vip(cell.shape) if cell.source is Source.NODE_AS_VIP else SOURCE_ADDRESSES[cell.source]
    return pair.of(cell.family)


def node_address_towards(name: str, family: Family) -> str:
    """node-a's address on the link to a pod, which is what the pod sees of masqueraded packets."""
    return (plan.pod_gateway(0) if name.startswith("pod-a") else plan.node_address(0)).of(family)


def node_addresses(family: Family) -> set[str]:
    """node-a's addresses on its links."""
    return {pair.of(family) for pair in (plan.node_address(0), plan.pod_gateway(0), _OWN_INTERFACE_ADDRESS)}


def flags(settings: Settings) -> list[str]:
    """The command line of a configuration."""
    detector = {
        Detector.CLUSTER_CIDR: [f"--cluster-cidr={','.join(plan.CLUSTER)}"],
        Detector.NODE_CIDR: ["--detect-local-mode=NodeCIDR"],
        Detector.BRIDGE: ["--detect-local-mode=BridgeInterface", f"--pod-bridge-interface={BRIDGE}"],
        Detector.PREFIX: ["--detect-local-mode=InterfaceNamePrefix", f"--pod-interface-name-prefix={PREFIX}"],
        Detector.NOTHING: [],
    }
    secondary = ",".join(_hosts(plan.node_secondary(0)))
    node_ports = {
        NodePorts.SECONDARY: secondary,
        NodePorts.PRIMARY_AND_SECONDARY: f"primary,{secondary}",
        NodePorts.UNDERLAY: ",".join(plan.UNDERLAY),
        NodePorts.LOCALHOST_AND_BRIDGE: f"localhost,{','.join(_hosts(plan.pod_gateway(0)))}",
    }
    return [
        *detector[settings.detector],
        f"--masquerade-all={str(settings.masquerade_all).lower()}",
        f"--nodeport-addresses={node_ports.get(settings.node_ports, settings.node_ports.value)}",
        *(["--endpoint-chains=Always"] if settings.endpoint_chains is EndpointChains.ALWAYS else []),
    ]


def _hosts(pair: Pair) -> list[str]:
    return [f"{pair.v4}/32", f"{pair.v6}/128"]


def manifests(world: World) -> list[Manifest]:
    """The cluster's Nodes, and every Service with its endpoints."""
    zoned = {"topology.kubernetes.io/zone": HERE}
    nodes = [node(one, **(zoned if one.name == "node-a" else {})) for one in world.nodes.values()]
    return [*nodes, service_cidr(), *(manifest for shape in SHAPES for manifest in _service(world, shape))]


def _service(world: World, shape: Shape) -> list[Manifest]:
    name, has = f"s{number(shape)}", shape.kind.targets
    node_port = 30000 + number(shape) if Target.NODE_PORT in has else 0
    ports = [port(PORT, protocol, node_port=node_port) for protocol in PROTOCOLS]
    spec: Manifest = {"internalTrafficPolicy": shape.internal.value}
    if has != (Target.CLUSTER_IP,):
        spec["externalTrafficPolicy"] = shape.external.value
    if Target.EXTERNAL_IP in has:
        spec["externalIPs"] = list(external_ip(shape))
    if shape.kind is Kind.PLAIN_VIP:
        spec["allocateLoadBalancerNodePorts"] = False
    if shape.ranges not in {Ranges.ANY, Ranges.ANNOTATION}:
        spec["loadBalancerSourceRanges"] = list(shape.ranges.texts)
    one = service(name, number(shape), ports, vips=[vip(shape)] if Target.VIP in has else [], **spec)
    if shape.kind is Kind.PLAIN_VIP:
        one["status"]["loadBalancer"]["ingress"] = [{"ip": address} for address in vip(shape)]
    if shape.ranges is Ranges.ANNOTATION:
        listed = ",".join(shape.ranges.texts)
        one["metadata"]["annotations"] = {"service.beta.kubernetes.io/load-balancer-source-ranges": listed}
    if shape in _PROXIED:
        one["status"]["loadBalancer"]["ingress"] += [
            {"ip": address, "ipMode": "Proxy"} for address in proxied_vip(shape)
        ]
    targets = [{"name": entry["name"], "protocol": entry["protocol"], "port": TARGET_PORT} for entry in ports]
    slices = [
        endpoint_slice(name, family, [_endpoint(world, backend, family) for backend in shape.state.backends], targets)
        for family in FAMILIES
    ]
    return [one, *slices]


_CONDITIONS = {
    Condition.READY: {"ready": True, "serving": True, "terminating": False},
    Condition.DRAINING: {"ready": False, "serving": True, "terminating": True},
    Condition.UNREADY: {"ready": False, "serving": False, "terminating": False},
    Condition.FINISHED: {"ready": False, "serving": False, "terminating": True},
}


def _endpoint(world: World, backend: Backend, family: Family) -> Manifest:
    hints: Manifest = {}
    if backend.zones:
        hints["forZones"] = [{"name": zone} for zone in backend.zones]
    if backend.nodes:
        hints["forNodes"] = [{"name": name} for name in backend.nodes]
    fields: Manifest = {"conditions": _CONDITIONS[backend.condition]} | ({"hints": hints} if hints else {})
    return endpoint(world.pod(backend.pod), family, **fields)


class Ground:
    """The network with everybody in place. Use it in a ``with`` statement.

    Attributes:
        world: the network.
        sctp: who answers over SCTP.
    """

    def __init__(self) -> None:
        pods = [["pod-a1", "pod-a2", "pod-a3", "pod-a4"], ["pod-b1", "pod-b2"], ["pod-c1"]]
        self.world = World(nodes=3, pods=pods)
        self.sctp = SctpServers()
        try:
            self._own_port = Host(self.world, "pod-a5", SOURCE_ADDRESSES[Source.STRANGER_PORT])
            self._wire()
            self._serve()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Ground":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the servers and let go of the network."""
        self.sctp.close()
        self.world.close()

    @property
    def sources(self) -> dict[Source, Host]:
        """Who dials for each kind of source."""
        pod, world = self.world.pod, self.world
        return {
            Source.POD: pod("pod-a3"),
            Source.ENDPOINT: pod("pod-a1"),
            Source.NODE: world.node("node-a"),
            Source.NODE_AS_VIP: world.node("node-a"),
            Source.OUTSIDE: world.client,
            Source.OUTSIDE_TOO: world.client,
            Source.OTHER_POD: pod("pod-c1"),
            Source.STRANGER: pod("pod-a4"),
            Source.STRANGER_PORT: self._own_port,
        }

    def _wire(self) -> None:
        world = self.world
        a, b, c = (world.node(f"node-{letter}") for letter in "abc")
        through_a = [
            f"route replace {ranges.of(family)} via {a.addresses.of(family)}"
            for ranges in (plan.SERVICES, plan.VIPS, plan.EXTERNAL_IPS)
            for family in FAMILIES
        ]
        back = [
            f"route replace {ranges.of(family)} via {a.addresses.of(family)}"
            for ranges in (plan.INSIDE, plan.OUTSIDE, c.pod_range)
            for family in FAMILIES
        ]
        b.ip(*back)
        c.ip(*through_a)
        strangers = SOURCE_ADDRESSES[Source.STRANGER], SOURCE_ADDRESSES[Source.STRANGER_PORT]
        lengths = {4: 32, 6: 128}
        for family in FAMILIES:
            whole = lengths[family]
            for stranger in strangers:
                world.router.ip(f"route add {stranger.of(family)}/{whole} via {a.address(family)}")
            a.ip(f"route add {strangers[0].of(family)}/{whole} dev {BRIDGE}")
            nodad = " nodad" if family == 6 else ""
            world.pod("pod-a4").ip(f"addr add {strangers[0].of(family)}/{whole} dev eth0{nodad}")
        self._wire_own_port(a, strangers[1])
        bound = [vip(shape) for shape in SHAPES if shape.ranges is not Ranges.ANY]
        a.ip(*(f"route add local {address} dev eth0" for pair in bound for address in pair))

    def _wire_own_port(self, a: Host, stranger: Pair) -> None:
        pod = self._own_port
        a.ip(
            f"link add {OWN_INTERFACE} type veth peer name eth0 netns {pod.namespace.path}",
            f"link set {OWN_INTERFACE} up",
            f"addr add {_OWN_INTERFACE_ADDRESS.v4}/32 dev {OWN_INTERFACE}",
            f"addr add {_OWN_INTERFACE_ADDRESS.v6}/128 dev {OWN_INTERFACE} nodad",
            *(f"route add {address} dev {OWN_INTERFACE}" for address in stranger),
        )
        pod.ip(
            "link set eth0 up",
            "link set lo up",
            f"addr add {stranger.v4}/32 dev eth0",
            f"addr add {stranger.v6}/128 dev eth0 nodad",
            *(f"route add {gateway} dev eth0" for gateway in _OWN_INTERFACE_ADDRESS),
            *(f"route add default via {gateway} dev eth0" for gateway in _OWN_INTERFACE_ADDRESS),
        )

    def _serve(self) -> None:
        world = self.world
        a = world.node("node-a")
        for pod in world.pods.values():
            self._answer(pod, pod.addresses, TARGET_PORT)
        proxied = [address for shape in SHAPES if shape in _PROXIED for address in proxied_vip(shape)]
        world.router.ip(*(f"route add local {address} dev lo" for address in proxied))
        self._answer(world.router, proxied, PORT)
        stray = {
            destination(cell)[0]
            for cell in every_cell()
            if cell.target in {Target.VIP_OTHER_PORT, Target.EXTERNAL_IP_OTHER_PORT}
        }
        world.router.ip(*(f"route add local {address} dev lo" for address in sorted(stray)))
        self._answer(world.router, sorted(stray), OTHER_PORT)
        own = [*a.addresses, *a.secondary, *a.gateway, *LOOPBACK]
        shapes = unique(cell.shape for cell in every_cell() if cell.target is Target.NODE_PORT_LOOPBACK)
        for shape in shapes:
            self._answer(a, own, 30000 + number(shape))

    def _answer(self, host: Host | Pod, addresses: Sequence[str], port_: int) -> None:
        host.serve(port_, addresses=addresses)
        self.sctp.serve(host.namespace, host.name, addresses, port_)
