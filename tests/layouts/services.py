"""Services in the few values that decide their rules: one port of one Service in one IP family."""

import base64
import hashlib
import ipaddress
from dataclasses import dataclass
from typing import Literal

Family = Literal[4, 6]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A ready endpoint.

    Attributes:
        address: in canonical form.
        port: what it listens on.
        local: whether it is on the node that has the table.
    """

    address: str
    port: int
    local: bool = False

    @property
    def target(self) -> str:
        """``address:port``, the address in brackets if it is an IPv6 one."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Service:
    """One port of a Service in one family.

    Attributes:
        namespace: its namespace.
        name: its name.
        cluster_ip: its ClusterIP in the family.
        port: the port of the ClusterIP, external IPs and load balancer addresses.
        endpoints: the ready ones; none: traffic is rejected.
        protocol: tcp, udp or sctp.
        port_name: empty for the unnamed port.
        node_port: 0: none.
        external_ips: its externalIPs.
        vips: its load balancer's addresses.
        source_ranges: CIDRs that may reach the load balancer's addresses; none: everyone may.
        external_local: externalTrafficPolicy Local.
        internal_local: internalTrafficPolicy Local.
        affinity_seconds: ClientIP affinity for so long; 0: none.
    """

    namespace: str
    name: str
    cluster_ip: str
    port: int
    endpoints: tuple[Endpoint, ...] = ()
    protocol: Literal["tcp", "udp", "sctp"] = "tcp"
    port_name: str = ""
    node_port: int = 0
    external_ips: tuple[str, ...] = ()
    vips: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    external_local: bool = False
    internal_local: bool = False
    affinity_seconds: int = 0

    @property
    def full_name(self) -> str:
        """``namespace/name/protocol/port name``."""
        return f"{self.namespace}/{self.name}/{self.protocol}/{self.port_name}"

    @property
    def label(self) -> str:
        """``namespace/name:port name``; without the colon for the unnamed port."""
        return f"{self.namespace}/{self.name}:{self.port_name}" if self.port_name else f"{self.namespace}/{self.name}"

    @property
    def local_endpoints(self) -> tuple[Endpoint, ...]:
        """Those on the node."""
        return tuple(endpoint for endpoint in self.endpoints if endpoint.local)

    @property
    def externally_accessible(self) -> bool:
        """Whether it has any frontend besides the ClusterIP."""
        return bool(self.node_port or self.vips or self.external_ips)

    @property
    def uses_cluster_endpoints(self) -> bool:
        """Whether some traffic may go to endpoints on any node."""
        return not self.internal_local or self.externally_accessible

    @property
    def uses_local_endpoints(self) -> bool:
        """Whether some traffic may go to endpoints on this node only."""
        return self.internal_local or (self.external_local and self.externally_accessible)


@dataclass(frozen=True, slots=True)
class Node:
    """What the node and its configuration put into the table of one family.

    Attributes:
        address: its primary address; a load balancer whose ranges hold it lets its own addresses in as well.
        pod_range: the CIDR that local traffic comes from (detectLocalMode ClusterCIDR); None: none is known.
        node_port_addresses: addresses that accept NodePorts; None: all but loopback.
        service_ranges: the ServiceCIDRs.
        mark: the bit that asks for masquerading.
        masquerade_all: masquerade everything that goes to a ClusterIP.
    """

    address: str | None = None
    pod_range: str | None = None
    node_port_addresses: tuple[str, ...] | None = None
    service_ranges: tuple[str, ...] = ()
    mark: int = 0x4000
    masquerade_all: bool = False

    def is_in(self, ranges: tuple[str, ...]) -> bool:
        """Whether its address is in one of some CIDRs; host bits do not matter."""
        if self.address is None:
            return False
        address = ipaddress.ip_address(self.address)
        return any(address in ipaddress.ip_network(text, strict=False) for text in ranges)


def hashed(full: str) -> str:
    """A name that starts with a hash of itself, as kube-proxy builds it: at most 240 bytes, the hash of all of it."""
    name = f"{base64.b32encode(hashlib.sha256(full.encode()).digest())[:8].decode()}-{full}"
    return name if len(name) <= 240 else name[:237] + "..."
