"""The network that both proxies get: three nodes with pods, a router, a client, and more addresses to dial from.

Beyond :class:`netns.world.World`: the ways of all but node-a to clients and to each other's pods lead through node-a,
so that what was not masqueraded there comes back there; half of the load balancers' addresses are also node-a's own.
Each origin can dial from a hundred more addresses: with session affinity, each of them is another client.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from cluster.commands import SERVICES
from cluster.differential.generate import TARGETS, vip
from cluster.differential.states import LOCAL_PODS, NODES, REMOTE_PODS
from netns import addresses as plan
from netns.addresses import FAMILIES, Family, Pair
from netns.matrix.sctp import SctpServers
from netns.namespaces import Namespace
from netns.world import Host, Node, World

NODE = "node-a"
"""The node whose proxy is looked at."""
PLAIN_POD, OTHER_PLAIN_POD = "pod-a4", "pod-c2"
"""A pod of that node, and one of another, that serve nothing."""
_NODE_ALIASES = Pair("10.97.0.0/24", "fd00:10:97::/64")
ALIASES, _FIRST_ALIAS = 110, 12
"""How many addresses an origin has to dial from, besides the usual one."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Somebody who dials.

    Attributes:
        name: who, for reports.
        host: the name of the host.
        source: the address it dials from; None: what routing chooses.
        aliases: a range of addresses that it may dial from as well; None: it has none.
    """

    name: str
    host: str
    source: Pair | None = None
    aliases: Pair | None = None

    def alias(self, family: Family, number: int) -> str | None:
        """One of the addresses it may dial from; None: it has but one."""
        return None if self.aliases is None else _nth(self.aliases.of(family), _FIRST_ALIAS + number % ALIASES)


def _pod_aliases(index: int) -> Pair:
    return Pair(f"10.180.{index + 1}.128/25", f"fd00:10:180:{index + 1}:0:1::/96")


def _nth(ranges: str, number: int) -> str:
    prefix = ranges.partition("/")[0]
    if ":" in prefix:
        return f"{prefix}{number}"
    head, _, last = prefix.rpartition(".")
    return f"{head}.{int(last) + number}"


ORIGINS: dict[str, Origin] = {
    origin.name: origin
    for origin in (
        Origin("a pod", PLAIN_POD, aliases=_pod_aliases(0)),
        Origin("the node", NODE, aliases=_NODE_ALIASES),
        Origin("a client", "client", Pair("203.0.113.9", "2001:db8:203::9"), plan.INSIDE),
        Origin("another client", "client", Pair("198.51.100.7", "2001:db8:198::7"), plan.OUTSIDE),
        Origin("another node's pod", OTHER_PLAIN_POD, aliases=_pod_aliases(2)),
        *(Origin(name, name) for name in LOCAL_PODS),
    )
}
"""Who may dial. Local pods that serve do as well, for they may get to themselves."""


class Ground:
    """The network of one side. Use it in a ``with`` statement.

    Attributes:
        world: nodes, pods, router and client.
    """

    def __init__(self) -> None:
        pods = [[*LOCAL_PODS, PLAIN_POD], ["pod-b1", "pod-b2"], ["pod-c1", OTHER_PLAIN_POD]]
        self.world = World(nodes=3, pods=pods)
        self._sctp = SctpServers()
        try:
            self._wire()
            self._serve()
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
        """Stop the servers and let go of the network."""
        self._sctp.close()
        self.world.close()

    @property
    def node(self) -> Node:
        """The node that the proxy runs on."""
        return self.world.node(NODE)

    def host(self, name: str) -> Host:
        """A pod, a node or the client."""
        if name == "client":
            return self.world.client
        return self.world.nodes[name] if name in self.world.nodes else self.world.pod(name)

    def namespaces(self) -> list[Namespace]:
        """Where connections are tracked."""
        return [node_.namespace for node_ in self.world.nodes.values()]

    def _wire(self) -> None:
        world = self.world
        a, b, c = (world.node(name) for name in ("node-a", "node-b", "node-c"))
        world.client.ip(*_routes([SERVICES], a))
        to_client = [plan.INSIDE, plan.OUTSIDE, _NODE_ALIASES]
        b.ip(*_routes([*to_client, c.pod_range], a))
        c.ip(*_routes([*to_client, b.pod_range, SERVICES, plan.VIPS, plan.EXTERNAL_IPS], a))
        for name, owner in ((PLAIN_POD, a), (OTHER_PLAIN_POD, c)):
            aliases = _pod_aliases("abc".index(owner.name[-1]))
            owner.ip(*_routes([aliases], world.pod(name)))
            world.pod(name).ip(*_local([aliases]))
        a.ip(*_local([_NODE_ALIASES]))
        bound = [vip(number) for number in range(2, 251, 2)]
        a.ip(*(f"route add local {address} dev eth0" for pair in bound for address in pair))

    def _serve(self) -> None:
        for name in (*LOCAL_PODS, *REMOTE_PODS, *NODES):
            host = self.host(name)
            for port in TARGETS:
                answer = f"{name}:{port}"
                self.world.servers.serve(host.namespace, answer, host.addresses, port)
                self._sctp.serve(host.namespace, answer, host.addresses, port)


def _routes(ranges: Sequence[Pair], gateway: Host) -> list[str]:
    return [f"route replace {pair.of(family)} via {gateway.address(family)}" for pair in ranges for family in FAMILIES]


def _local(ranges: Sequence[Pair]) -> list[str]:
    return [f"route add local {pair.of(family)} dev lo" for pair in ranges for family in FAMILIES]
