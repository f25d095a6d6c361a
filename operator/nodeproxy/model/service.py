"""Service ports: what one port of one Service asks for in one IP family."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from nodeproxy.kube.addresses import Family, family_of
from nodeproxy.kube.objects import LoadBalancerIngress, Protocol, Service, ServiceSpec

_HEADLESS = "None"
_DEFAULT_AFFINITY_SECONDS = 10800  # API default of sessionAffinityConfig.clientIP.timeoutSeconds


class ServicePortName(NamedTuple):
    """Names a service port: namespace, Service, port name (may be empty) and protocol."""

    namespace: str
    service: str
    port_name: str
    protocol: Protocol

    def __str__(self) -> str:
        name = f"{self.namespace}/{self.service}"
        return f"{name}:{self.port_name}" if self.port_name else name


class ServicePort(msgspec.Struct, frozen=True, gc=False):
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


def why_not_served(service: Service) -> str | None:
    """Why no proxy rules are made for a Service in any family; None if it is served.

    A Service labelled ``service.kubernetes.io/service-proxy-name``, whatever the value, belongs to another proxy.
    """
    labels = service.metadata.labels
    if labels is not None and labels.service_proxy_name is not None:
        return "label service.kubernetes.io/service-proxy-name hands it to another proxy"
    spec = service.spec
    if spec.type == "ExternalName":
        return "type ExternalName"
    addresses = (spec.cluster_ip, *(spec.cluster_ips or ()))
    if _HEADLESS in addresses:
        return "headless"
    return None if any(addresses) else "no ClusterIP"


def service_ports(service: Service, family: Family) -> tuple[ServicePort, ...]:
    """The ports that one Service asks for in one family, in the order of ``spec.ports``.

    Nothing if the Service is not served at all (:func:`why_not_served`) or has no ClusterIP of this family. Of two
    ports with one name and protocol, which the API does not let pass, the first one counts. Node port and
    load-balancer addresses count whatever the type is: they may outlive a change of type until they are released.
    """
    spec = service.spec
    cluster_ip = _cluster_ip(spec, family)
    if not cluster_ip or why_not_served(service) is not None:
        return ()
    meta = service.metadata
    external_ips = _of_family(spec.external_ips, family)
    vips = _load_balancer_vips(service, family)
    ranges = spec.load_balancer_source_ranges
    source_ranges = None if ranges is None else _of_family(ranges, family)
    affinity = _affinity_seconds(spec)
    external_local = _external_policy_local(spec)
    health_check = (spec.health_check_node_port or 0) if external_local and spec.type == "LoadBalancer" else 0
    found: dict[ServicePortName, ServicePort] = {}
    for port in spec.ports or ():
        name = ServicePortName(meta.namespace, meta.name, port.name or "", port.protocol or "TCP")
        if name in found:
            continue
        found[name] = ServicePort(
            name=name,
            family=family,
            created=meta.creation_timestamp or "",
            cluster_ip=cluster_ip,
            port=port.port,
            node_port=port.node_port or 0,
            external_ips=external_ips,
            load_balancer_vips=vips,
            source_ranges=source_ranges,
            affinity_seconds=affinity,
            internal_policy_local=spec.internal_traffic_policy == "Local",
            external_policy_local=external_local,
            health_check_node_port=health_check,
        )
    return tuple(found.values())


def service_addresses(service: Service) -> frozenset[str]:
    """The canonical addresses of all families that a Service is served at, NodePorts left aside."""
    if why_not_served(service) is not None:
        return frozenset()
    spec = service.spec
    found = {*(spec.cluster_ips or ()), spec.cluster_ip, *(spec.external_ips or ())}
    for family in Family:
        found.update(_load_balancer_vips(service, family))
    return frozenset(text for text in found if text)


def _of_family(texts: Iterable[str | None] | None, family: Family) -> tuple[str, ...]:
    """Addresses or CIDRs of one family, in order, without duplicates and blanks."""
    return tuple(dict.fromkeys([text for text in texts if text and family_of(text) == family])) if texts else ()


def _cluster_ip(spec: ServiceSpec, family: Family) -> str:
    """The ClusterIP of one family, or the empty text.

    ``clusterIPs`` runs parallel to ``ipFamilies``, but is searched by family and not by index: cleaning may have
    taken an unreadable address out of it. Objects that no API server has defaulted may lack either list.
    """
    if spec.ip_families and family.label not in spec.ip_families:
        return ""
    for text in (*(spec.cluster_ips or ()), spec.cluster_ip):
        if text and family_of(text) == family:
            return text
    return ""


def _load_balancer_vips(service: Service, family: Family) -> tuple[str, ...]:
    """Addresses of the load balancer that are short-circuited here: not those of ipMode Proxy (KEP-1860)."""
    balancer = service.status.load_balancer if service.status is not None else None
    ingress: tuple[LoadBalancerIngress, ...] = (balancer.ingress if balancer is not None else None) or ()
    return _of_family((entry.ip for entry in ingress if (entry.ip_mode or "VIP") == "VIP"), family)


def _affinity_seconds(spec: ServiceSpec) -> int:
    if spec.session_affinity != "ClientIP":
        return 0
    client = spec.session_affinity_config.client_ip if spec.session_affinity_config is not None else None
    return (client.timeout_seconds if client is not None else None) or _DEFAULT_AFFINITY_SECONDS


def _external_policy_local(spec: ServiceSpec) -> bool:
    """Whether externalTrafficPolicy Local applies: the type has external traffic, or external IPs bring some."""
    has_external_traffic = spec.type in ("LoadBalancer", "NodePort") or bool(spec.external_ips)
    return spec.external_traffic_policy == "Local" and has_external_traffic
