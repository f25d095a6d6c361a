"""Which endpoints a service port's traffic goes to from this node."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nodeproxy.model.endpoints import Endpoint
from nodeproxy.model.node import NodeView
from nodeproxy.model.service import ServicePort
from nodeproxy.model.topology import NO_HINTS, Topology, topology_mode


@dataclass(frozen=True, slots=True)
class EndpointSets:
    """The endpoints of one service port, sorted by what they are for.

    Attributes:
        cluster: for traffic under the Cluster policy, and for short-circuited traffic.
        local: for traffic under the Local policy.
        reachable: the union of both.
        any_usable: whether some node has a usable endpoint (then a missing local one means drop, not reject).
        topology: how hints were used for ``cluster``; left out of comparisons, since it only explains.
    """

    cluster: tuple[Endpoint, ...]
    local: tuple[Endpoint, ...]
    reachable: tuple[Endpoint, ...]
    any_usable: bool
    topology: Topology = field(default_factory=Topology, compare=False)


def categorize(endpoints: Sequence[Endpoint], port: ServicePort, node: NodeView) -> EndpointSets:
    """Sort the endpoints of a service port by the traffic from this node that may go to them.

    Ready endpoints take traffic. Where a set has none, endpoints that serve while they terminate step in (KEP-1669);
    others never do. Hints limit the cluster's ready endpoints only (:func:`topology_mode`): whoever asks for
    Local gets all that is local, and what steps in is short-lived anyway.

    Args:
        endpoints: as :func:`nodeproxy.model.endpoints.merge_slices` gives them, sorted and unique; the order is kept.
        port: the service port they serve; a set that none of its traffic needs is left empty.
        node: this node. Without a name, nothing is local.
    """
    any_usable = any(e.ready or (e.serving and e.terminating) for e in endpoints)
    cluster: tuple[Endpoint, ...] = ()
    topology = NO_HINTS
    if port.uses_cluster_endpoints:
        topology = topology_mode(endpoints, node)
        ready = [e for e in endpoints if e.ready]
        if topology.mode:
            ready = [e for e in ready if topology.allows(e, node)]
        cluster = tuple(ready) or _stand_ins(endpoints)
    if not port.uses_local_endpoints:
        return EndpointSets(cluster, (), cluster, any_usable, topology)

    on_node = [e for e in endpoints if e.is_local(node.name)]
    local = tuple([e for e in on_node if e.ready]) or _stand_ins(on_node)
    if not port.uses_cluster_endpoints:
        return EndpointSets((), local, local, any_usable, topology)
    wanted = {(e.address, e.port) for e in (*cluster, *local)}
    added = len(wanted) > len(cluster)
    reachable = tuple([e for e in endpoints if (e.address, e.port) in wanted]) if added else cluster
    return EndpointSets(cluster, local, reachable, any_usable, topology)


def _stand_ins(endpoints: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """Endpoints that still serve, while they terminate."""
    return tuple([e for e in endpoints if e.serving and e.terminating])
