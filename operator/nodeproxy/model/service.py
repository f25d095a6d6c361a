"""Service ports: what one port of one Service asks for in one IP family."""

from dataclasses import dataclass
from typing import NamedTuple

from nodeproxy.kube.addresses import Family
from nodeproxy.kube.objects import Protocol


class ServicePortName(NamedTuple):
    """Names a service port: namespace, Service, port name (may be empty) and protocol."""

    namespace: str
    service: str
    port_name: str
    protocol: Protocol

    def __str__(self) -> str:
        name = f"{self.namespace}/{self.service}"
        return f"{name}:{self.port_name}" if self.port_name else name


@dataclass(frozen=True, slots=True)
class ServicePort:
    """One port of a Service in one family; all addresses are of that family and canonical.

    Attributes:
        name: its name.
        family: the family of all its addresses.
        created: when the Service was created (RFC 3339, empty if unknown), to decide between clashing claims.
        cluster_ip: the ClusterIP.
        port: the port on ClusterIP, external IPs and load-balancer VIPs.
        node_port: the port on node addresses; 0 for none.
        external_ips: ``spec.externalIPs``, in order, without duplicates.
        load_balancer_vips: ``status.loadBalancer.ingress[].ip`` with ipMode VIP or unset, in order.
        source_ranges: CIDRs that may use the VIPs; None: all may; empty: ranges were given, but none of this family
            could be read, so nobody may (fail closed).
        affinity_seconds: how long ClientIP affinity lasts; 0 without affinity.
        internal_policy_local: internalTrafficPolicy is Local.
        external_policy_local: externalTrafficPolicy is Local, and the type has external traffic.
        health_check_node_port: for type LoadBalancer with externalTrafficPolicy Local; else 0.
    """

    name: ServicePortName
    family: Family
    created: str
    cluster_ip: str
    port: int
    node_port: int = 0
    external_ips: tuple[str, ...] = ()
    load_balancer_vips: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] | None = None
    affinity_seconds: int = 0
    internal_policy_local: bool = False
    external_policy_local: bool = False
    health_check_node_port: int = 0

    @property
    def externally_accessible(self) -> bool:
        """Whether it has any frontend but the ClusterIP."""
        return bool(self.node_port or self.external_ips or self.load_balancer_vips)

    @property
    def uses_cluster_endpoints(self) -> bool:
        """Whether any traffic may go to endpoints of the whole cluster (the short circuit included)."""
        return not self.internal_policy_local or self.externally_accessible

    @property
    def uses_local_endpoints(self) -> bool:
        """Whether any traffic is limited to endpoints of this node."""
        return self.internal_policy_local or (self.external_policy_local and self.externally_accessible)
