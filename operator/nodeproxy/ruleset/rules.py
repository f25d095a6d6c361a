"""The rules of one service port, as values: what its chains do, and which elements lead to them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from nodeproxy.model.endpoints import Endpoint
from nodeproxy.model.service import ServicePortName
from nodeproxy.ruleset.names import ENDPOINT_CHAIN_MAP, endpoint_map

# Containers of dispatch elements.
CLUSTER_IPS: Final = "cluster-ips"
NODE_PORT_IPS: Final = "nodeport-ips"
HAIRPIN: Final = "hairpin-connections"
SERVICE_IPS: Final = "service-ips"
SERVICE_NODE_PORTS: Final = "service-nodeports"
NO_ENDPOINT_SERVICES: Final = "no-endpoint-services"
NO_ENDPOINT_NODE_PORTS: Final = "no-endpoint-nodeports"
FIREWALL_IPS: Final = "firewall-ips"

DROP: Final = "drop"
REJECT_CHAIN: Final = "reject-chain"

ElementKey = tuple[str | int, ...]
"""Fields of an element's key: addresses, protocols (lower case) and ports, in the container's order."""


class Target(NamedTuple):
    """Where DNAT leads: address and port of an endpoint."""

    address: str
    port: int


class Element(NamedTuple):
    """An element of a set or map. ``verdict``: :data:`DROP`, the chain to go to, or None in a set."""

    container: str
    key: ElementKey
    verdict: str | None = None
    comment: str = ""


class AffinitySet(NamedTuple):
    """The clients that stick to one endpoint, and for how many seconds after their last new connection."""

    name: str
    timeout: int


class StickyEndpoint(NamedTuple):
    """An endpoint in a balancing chain with affinity: clients in ``affinity_set`` go to ``chain``."""

    affinity_set: str
    chain: str


@dataclass(frozen=True, slots=True)
class EndpointChain:
    """Leads to one endpoint; remembers the client if there is a set, counts new connections if asked to."""

    name: str
    protocol: str
    target: Target
    affinity_set: str | None
    counter: bool


@dataclass(frozen=True, slots=True)
class BalancingChain:
    """Chooses an endpoint: first one the client sticks to, else one at random.

    Exactly one of ``targets`` (DNAT right here) and ``chains`` (a chain per endpoint) is filled, never empty. Targets
    are kept as addresses and ports apart: 100,000 of them take half of the memory, since ports are mostly the same.
    """

    name: str
    protocol: str
    addresses: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    chains: tuple[str, ...] = ()
    sticky: tuple[StickyEndpoint, ...] = ()

    @classmethod
    def of_targets(cls, name: str, protocol: str, targets: Sequence[Target] | Sequence[Endpoint]) -> "BalancingChain":
        """A chain that leads to ``targets``."""
        ports = tuple([target.port for target in targets])
        return cls(name, protocol, tuple([target.address for target in targets]), _one_of_its_kind(ports))

    @property
    def targets(self) -> tuple[Target, ...]:
        """Where it leads by DNAT."""
        return tuple(map(Target, self.addresses, self.ports))

    @property
    def choices(self) -> int:
        """Among how many it chooses."""
        return len(self.addresses) or len(self.chains)

    @property
    def slots(self) -> tuple[Target | str, ...]:
        """What needs consecutive slots in a shared map; empty with a single endpoint, which needs none."""
        if self.choices < 2:
            return ()
        return self.targets or self.chains

    @property
    def slot_maps(self) -> str:
        """Prefix of the maps that its slots are in."""
        return endpoint_map(self.protocol) if self.addresses else ENDPOINT_CHAIN_MAP

    def chooses_like(self, other: "BalancingChain") -> bool:
        """Whether it chooses among the same, in the same order."""
        return (self.addresses, self.ports, self.chains) == (other.addresses, other.ports, other.chains)


@lru_cache(maxsize=1024)
def _one_of_its_kind(ports: tuple[int, ...]) -> tuple[int, ...]:
    return ports


@dataclass(frozen=True, slots=True)
class ExternalChain:
    """What happens to traffic that comes to an external address or a node port.

    Attributes:
        name: its name.
        local: externalTrafficPolicy Local: keep the client's address, short-circuit traffic from this node.
        cluster_chain: chain of the cluster-wide endpoints, for the short circuit.
        policy_chain: where all else goes; None: nowhere, it is dropped later by its frontend's element.
    """

    name: str
    local: bool
    cluster_chain: str
    policy_chain: str | None


@dataclass(frozen=True, slots=True)
class FirewallChain:
    """Drops what does not come from ``allowed`` (CIDRs and addresses); empty: drops all."""

    name: str
    allowed: tuple[str, ...]


Chain = EndpointChain | BalancingChain | ExternalChain | FirewallChain


@dataclass(frozen=True, slots=True)
class ServiceRules:
    """All that the table holds for one service port.

    Attributes:
        name: the service port.
        chains: its chains; each refers only to earlier ones.
        sets: its affinity sets.
        elements: elements that are its alone.
        shared: elements that other service ports may want as well (ClusterIPs, hairpin connections).
        lacks_local_internal: has endpoints, but none here for internalTrafficPolicy Local.
        lacks_local_external: the same for externalTrafficPolicy Local; also as long as the Service has no external
            frontend yet, since only then its local endpoints are looked at (kube-proxy's metric counts it so).
    """

    name: ServicePortName
    chains: tuple[Chain, ...] = ()
    sets: tuple[AffinitySet, ...] = ()
    elements: tuple[Element, ...] = ()
    shared: tuple[Element, ...] = ()
    lacks_local_internal: bool = False
    lacks_local_external: bool = False

    def balancing(self) -> Iterator[BalancingChain]:
        """Its chains that choose between endpoints."""
        return (chain for chain in self.chains if isinstance(chain, BalancingChain))
