"""Which endpoints a service port's traffic goes to from this node."""

from dataclasses import dataclass

from nodeproxy.model.endpoints import Endpoint


@dataclass(frozen=True, slots=True)
class EndpointSets:
    """The endpoints of one service port, sorted by what they are for.

    Attributes:
        cluster: for traffic under the Cluster policy, and for short-circuited traffic.
        local: for traffic under the Local policy.
        reachable: the union of both.
        any_usable: whether some node has a usable endpoint (then a missing local one means drop, not reject).
    """

    cluster: tuple[Endpoint, ...]
    local: tuple[Endpoint, ...]
    reachable: tuple[Endpoint, ...]
    any_usable: bool
