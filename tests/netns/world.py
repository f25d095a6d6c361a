"""A small cluster's network: nodes with pods on a bridge, a router, a client outside, all in network namespaces.

Nothing of it has a name outside of this process, so nothing is left when it ends, however it ends.

    client ── underlay bridge (router) ── node-a ── cni0 ── pod-a1, pod-a2, …
                                      └── node-b ── cni0 ── pod-b1, …

The client reaches ClusterIPs, load balancers' addresses and externalIPs through node-a, where the proxy under test
runs. What no rule takes goes on to the router, which answers "no route": so a packet that a rule dropped or rejected
can be told from one that no rule saw.
"""

import string
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from netns import addresses as plan
from netns.addresses import FAMILIES, Family, Pair
from netns.namespaces import Namespace
from netns.probe import DEFAULT_TIMEOUT, Flow, Outcome, probe
from netns.servers import Protocol, Server, ServerLoop

BRIDGE = "cni0"
"""The bridge that a node's pods hang on."""

# The kernel itself says "no route" only once a second to each sender (net.ipv4.route.error_cost, which child
# namespaces can't change), so the router says it by rule. To fib, local addresses of IPv6 are missing too.
_EDGE = """
table inet edge {
    chain prerouting {
        type filter hook prerouting priority 0
        ip daddr != 224.0.0.0/3 fib daddr oif missing fib daddr type != local reject with icmpx no-route
        ip6 daddr != { fe80::/10, ff00::/8 } fib daddr oif missing fib daddr type != local reject with icmpx no-route
    }
}
"""

_SYSCTLS: dict[str, str | int] = {
    "ipv4/ip_forward": 1,
    "ipv4/conf/all/rp_filter": 0,
    "ipv4/conf/default/rp_filter": 0,
    "ipv4/conf/all/send_redirects": 0,
    "ipv4/conf/default/send_redirects": 0,
    "ipv4/conf/all/accept_redirects": 0,
    "ipv4/conf/default/accept_redirects": 0,
    "ipv4/icmp_ratelimit": 0,
    "ipv6/icmp/ratelimit": 0,
    "ipv6/conf/all/forwarding": 1,
    "ipv6/conf/default/forwarding": 1,
    "ipv6/conf/all/accept_dad": 0,
    "ipv6/conf/default/accept_dad": 0,
    "ipv6/conf/all/accept_redirects": 0,
    "ipv6/conf/default/accept_redirects": 0,
    "ipv6/ip_nonlocal_bind": 1,
}
# Not there, or not for child namespaces, in every kernel.
_OPTIONAL_SYSCTLS: dict[str, str | int] = {"ipv4/icmp_msgs_per_sec": 1_000_000, "ipv4/icmp_msgs_burst": 1_000_000}
# Where br_netfilter is loaded, its rules would see what the router passes on as a bridge.
_BRIDGE_SYSCTLS: dict[str, str | int] = {"bridge/bridge-nf-call-iptables": 0, "bridge/bridge-nf-call-ip6tables": 0}


class Host:
    """Something with a namespace and addresses.

    Attributes:
        world: the world it is in.
        name: what its servers answer.
        namespace: its network namespace.
        addresses: its primary address in each family.
    """

    def __init__(self, world: "World", name: str, addresses: Pair) -> None:
        self.world = world
        self.name = name
        self.addresses = addresses
        self.namespace = world.namespace(name)

    def address(self, family: Family) -> str:
        """Its address in a family."""
        return self.addresses.of(family)

    def serve(
        self, port: int, protocols: Sequence[Protocol] = ("TCP", "UDP"), *, addresses: Sequence[str] | None = None
    ) -> Server:
        """Answer on a port of its primary addresses (or those given) with its name."""
        return self.world.servers.serve(self.namespace, self.name, addresses or self.addresses, port, protocols)

    def connect(
        self,
        address: str,
        port: int,
        protocol: Protocol = "TCP",
        *,
        timeout: float = DEFAULT_TIMEOUT,
        source: str | None = None,
    ) -> Outcome:
        """Try one flow from here; see :func:`netns.probe.probe`."""
        return probe([Flow(self.namespace, address, port, protocol, source)], timeout)[0]

    def connect_times(self, count: int, address: str, port: int, protocol: Protocol = "TCP") -> list[Outcome]:
        """Try the same flow many times, a second's patience each."""
        return probe([Flow(self.namespace, address, port, protocol)] * count, 1.0)

    def ip(self, *lines: str) -> None:
        """Run lines of the ``ip`` command here."""
        self.namespace.ip(lines)


class Pod(Host):
    """A pod.

    Attributes:
        node: the node it is on.
    """

    def __init__(self, node: "Node", name: str, addresses: Pair) -> None:
        super().__init__(node.world, name, addresses)
        self.node = node


class Node(Host):
    """A node.

    Attributes:
        secondary: another address of it on the same interface.
        pod_range: the CIDRs of its pods.
        gateway: its address on the pods' bridge; what pods of its own see of it.
        pods: its pods by name.
    """

    def __init__(self, world: "World", index: int, pods: Sequence[str]) -> None:
        super().__init__(world, f"node-{string.ascii_lowercase[index]}", plan.node_address(index))
        self.secondary = plan.node_secondary(index)
        self.pod_range = plan.pod_range(index)
        self.gateway = plan.pod_gateway(index)
        self.pods = {name: Pod(self, name, plan.pod_address(index, number)) for number, name in enumerate(pods, 1)}

    def pod(self, name: str) -> Pod:
        """One of its pods, by name."""
        return self.pods[name]

    def own(self, family: Family) -> set[str]:
        """Its addresses as servers see them when it connects, or masquerades."""
        return {self.addresses.of(family), self.gateway.of(family)}


class World:
    """Nodes, pods, router and client, wired up. Close it, or use it in a ``with`` statement.

    Args:
        nodes: how many nodes: node-a, node-b, …
        pods: how many pods on each: pod-a1, pod-a2, … on node-a; or the names of each node's pods.

    Attributes:
        servers: the thread that answers for everybody.
        router: the underlay's bridge and the nodes' default gateway.
        client: a machine outside the cluster. It may use any address of ``addresses.INSIDE`` and
            ``addresses.OUTSIDE`` as source, besides its own.
        nodes: the nodes by name.
    """

    def __init__(self, nodes: int = 2, pods: int | Sequence[Sequence[str]] = 3) -> None:
        self._namespaces: list[Namespace] = []
        self.servers = ServerLoop()
        try:
            self.router = Host(self, "router", plan.ROUTER)
            self.client = Host(self, "client", plan.CLIENT)
            if isinstance(pods, int):
                letters = string.ascii_lowercase[:nodes]
                pods = [[f"pod-{letter}{number}" for number in range(1, pods + 1)] for letter in letters]
            self.nodes = {node.name: node for node in (Node(self, index, pods[index]) for index in range(nodes))}
            self._wire_underlay()
            for node in self.nodes.values():
                self._wire_pods(node)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the servers and let go of every namespace."""
        self.servers.close()
        for namespace in self._namespaces:
            namespace.close()

    def namespace(self, name: str) -> Namespace:
        """A new namespace with this world's kernel settings and nothing but a loopback interface."""
        namespace = Namespace(name)
        self._namespaces.append(namespace)
        namespace.sysctl(_SYSCTLS)
        namespace.sysctl(_OPTIONAL_SYSCTLS, optional=True)
        return namespace

    def node(self, name: str) -> Node:
        """A node by name."""
        return self.nodes[name]

    @property
    def pods(self) -> dict[str, Pod]:
        """All pods by name."""
        return {name: pod for node in self.nodes.values() for name, pod in node.pods.items()}

    def pod(self, name: str) -> Pod:
        """A pod by name."""
        return self.pods[name]

    def serve_pods(self, port: int) -> dict[str, Server]:
        """Have every pod answer on a port over TCP and UDP, in both families."""
        return {name: pod.serve(port) for name, pod in self.pods.items()}

    def _wire_underlay(self) -> None:
        members: list[Host] = [self.client, *self.nodes.values()]
        links: list[str] = ["link add br0 type bridge"]
        for number, member in enumerate(members):
            links += [
                f"link add u{number} type veth peer name eth0 netns {member.namespace.path}",
                f"link set u{number} master br0 up",
            ]
        to_client = [line for ranges in (plan.INSIDE, plan.OUTSIDE) for line in _route(ranges, plan.CLIENT)]
        self.router.ip(
            *links,
            *_address("br0", plan.ROUTER, plan.UNDERLAY),
            "link set br0 up",
            "link set lo up",
            *to_client,
            *(line for node in self.nodes.values() for line in _route(node.pod_range, node.addresses)),
        )
        self.router.namespace.sysctl(_BRIDGE_SYSCTLS, optional=True)
        self.router.namespace.nft(_EDGE)
        self.client.ip(*_address("eth0", plan.CLIENT, plan.UNDERLAY), "link set eth0 up", "link set lo up")
        first = next(iter(self.nodes.values()))
        self.client.ip(
            *(
                f"route add local {ranges.of(family)} dev lo"
                for ranges in (plan.INSIDE, plan.OUTSIDE)
                for family in FAMILIES
            ),
            *(
                line
                for ranges in (plan.SERVICES, plan.VIPS, plan.EXTERNAL_IPS)
                for line in _route(ranges, first.addresses)
            ),
            *(line for node in self.nodes.values() for line in _route(node.pod_range, node.addresses)),
        )
        for node in self.nodes.values():
            others = (other for other in self.nodes.values() if other is not node)
            node.ip(
                *_address("eth0", node.addresses, plan.UNDERLAY),
                *(f"{line} preferred_lft 0" for line in _address("eth0", node.secondary, plan.UNDERLAY)),
                "link set eth0 up",
                "link set lo up",
                *to_client,
                *(line for other in others for line in _route(other.pod_range, other.addresses)),
                *(f"route add default via {plan.ROUTER.of(family)}" for family in FAMILIES),
            )

    @staticmethod
    def _wire_pods(node: Node) -> None:
        lines = [f"link add {BRIDGE} type bridge", *_address(BRIDGE, node.gateway, node.pod_range)]
        for number, pod in enumerate(node.pods.values(), 1):
            lines += [
                f"link add veth{number} type veth peer name eth0 netns {pod.namespace.path}",
                f"link set veth{number} master {BRIDGE} up",
                f"link set veth{number} type bridge_slave hairpin on",
            ]
        node.ip(*lines, f"link set {BRIDGE} up")
        for pod in node.pods.values():
            # A pod knows nobody but its gateway, as with most network plug-ins: answers between pods of one node
            # pass the node too, and so its connection tracking, with or without br_netfilter.
            pod.ip(
                *_address("eth0", pod.addresses, _ALONE),
                "link set eth0 up",
                "link set lo up",
                *(f"route add {node.gateway.of(family)} dev eth0" for family in FAMILIES),
                *(f"route add default via {node.gateway.of(family)} dev eth0" for family in FAMILIES),
            )


_NODAD: dict[Family, str] = {4: "", 6: " nodad"}
_ALONE = Pair("10.0.0.0/32", "::/128")


def _address(device: str, pair: Pair, ranges: Pair) -> list[str]:
    return [
        f"addr add {pair.of(family)}/{ranges.of(family).partition('/')[2]} dev {device}{_NODAD[family]}"
        for family in FAMILIES
    ]


def _route(ranges: Pair, gateway: Pair) -> list[str]:
    return [f"route add {ranges.of(family)} via {gateway.of(family)}" for family in FAMILIES]
