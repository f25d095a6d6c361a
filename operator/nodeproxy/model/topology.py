"""Hints in endpoint slices: which endpoints are meant for clients on this node.

Only hints are read. The control plane turns ``spec.trafficDistribution`` (KEP-4444, KEP-3015) and topology-aware
routing (KEP-2433) into hints, and a proxy that interpreted those fields as well could disagree with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nodeproxy.model.endpoints import Endpoint
from nodeproxy.model.node import NodeView

TopologyMode = Literal["", "PreferSameNode", "PreferSameZone"]


@dataclass(frozen=True, slots=True)
class Topology:
    """How hints are used for one service port.

    Attributes:
        mode: PreferSameNode: only endpoints hinted for this node; PreferSameZone: only those hinted for its zone;
            empty: all.
        ignored: why hints that are there are not used, as a clause to log; empty if there are none, or all that
            matters is used. It holds no counts or addresses, so that it changes only when the reason does.
    """

    mode: TopologyMode = ""
    ignored: str = ""

    def allows(self, endpoint: Endpoint, node: NodeView) -> bool:
        """Whether clients on this node may use an endpoint under this mode."""
        if self.mode == "PreferSameNode":
            return node.name in endpoint.node_hints
        if self.mode == "PreferSameZone":
            return node.zone in endpoint.zone_hints
        return True


NO_HINTS = Topology()
"""How hints are used where there are none."""


def topology_mode(endpoints: Sequence[Endpoint], node: NodeView) -> Topology:
    """Choose the mode from the hints of the ready endpoints; the others are not looked at.

    Hints of a kind are used only if every ready endpoint has some and at least one is for this node (or its zone):
    else, while the control plane is still writing them, a few endpoints would get all the traffic. Hints for nodes
    come first, then hints for zones, then none.
    """
    if not [e for e in endpoints if (e.node_hints or e.zone_hints) and e.ready]:
        return NO_HINTS
    ready = [endpoint for endpoint in endpoints if endpoint.ready]
    with_node = [endpoint for endpoint in ready if endpoint.node_hints]
    with_zone = [endpoint for endpoint in ready if endpoint.zone_hints]
    reasons = []
    if with_node:
        if len(with_node) < len(ready):
            reasons.append("some ready endpoints have no node hint")
        elif not node.name:
            reasons.append("this node's name is not known")
        elif any(node.name in endpoint.node_hints for endpoint in with_node):
            return Topology("PreferSameNode")
        elif not with_zone:
            reasons.append("no ready endpoint has a hint for this node")
    if with_zone:
        if len(with_zone) < len(ready):
            reasons.append("some ready endpoints have no zone hint")
        elif not node.zone:
            reasons.append("this node's zone is not known (label topology.kubernetes.io/zone)")
        elif any(node.zone in endpoint.zone_hints for endpoint in with_zone):
            return Topology("PreferSameZone", "; ".join(reasons))
        else:
            reasons.append("no ready endpoint has a hint for this node's zone")
    return Topology("", "; ".join(reasons))
