"""The fields of Kubernetes objects that a service proxy reads, as small frozen structs.

Decoded straight from JSON or YAML; unknown fields cost nothing. Lists may come as ``null`` from the API, so every
list is optional on the wire and read through ``or ()``. Objects are shared between threads and never changed.

What :mod:`nodeproxy.kube.decode` returns has been cleaned as well: names are valid, every address and CIDR is in its
canonical spelling (:mod:`nodeproxy.kube.addresses`), every port number lies in 1..65535, every protocol is one of
``TCP``, ``UDP``, ``SCTP``; entries that were not are gone and reported.
"""

from typing import Literal

import msgspec

Protocol = Literal["TCP", "UDP", "SCTP"]
MAX_PORT = 65_535
KINDS = ("Service", "EndpointSlice", "Node", "ServiceCIDR")


class _Struct(msgspec.Struct, frozen=True, rename="camel", gc=False, kw_only=True):
    """Base: camelCase on the wire, immutable, invisible to the garbage collector (no cycles are possible)."""


class Labels(_Struct, frozen=True, rename=None):
    """The labels that mean something to a proxy."""

    service_name: str | None = msgspec.field(name="kubernetes.io/service-name", default=None)
    service_proxy_name: str | None = msgspec.field(name="service.kubernetes.io/service-proxy-name", default=None)
    headless: str | None = msgspec.field(name="service.kubernetes.io/headless", default=None)
    zone: str | None = msgspec.field(name="topology.kubernetes.io/zone", default=None)


class Annotations(_Struct, frozen=True, rename=None):
    """The annotations that mean something to a proxy."""

    load_balancer_source_ranges: str | None = msgspec.field(
        name="service.beta.kubernetes.io/load-balancer-source-ranges", default=None
    )
    last_change_trigger_time: str | None = msgspec.field(
        name="endpoints.kubernetes.io/last-change-trigger-time", default=None
    )


class ObjectMeta(_Struct, frozen=True):
    """metav1.ObjectMeta. ``namespace`` is empty for cluster-scoped kinds; times are RFC 3339.

    ``resource_version`` is opaque: it tells two versions of an object apart, and where a watch goes on.
    """

    name: str
    namespace: str = ""
    uid: str | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: Labels | None = None
    annotations: Annotations | None = None


# --- core/v1 Service -------------------------------------------------------------------------------------------------


class ServicePortSpec(_Struct, frozen=True):
    """core/v1 ServicePort. ``name`` is empty when there is one unnamed port; ``node_port`` 0 means none."""

    port: int
    name: str | None = None
    protocol: Protocol | None = None
    node_port: int | None = None


class ClientIPConfig(_Struct, frozen=True):
    """core/v1 ClientIPConfig: seconds that affinity lasts (API default 10800)."""

    timeout_seconds: int | None = None


class SessionAffinityConfig(_Struct, frozen=True):
    """core/v1 SessionAffinityConfig."""

    client_ip: ClientIPConfig | None = msgspec.field(name="clientIP", default=None)


class ServiceSpec(_Struct, frozen=True):
    """core/v1 ServiceSpec.

    ``load_balancer_source_ranges``: None means open to all; an empty tuple, after cleaning, means that ranges were
    given and none could be read: closed to all.
    """

    type: Literal["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"] = "ClusterIP"
    cluster_ip: str | None = msgspec.field(name="clusterIP", default=None)
    cluster_ips: tuple[str, ...] | None = msgspec.field(name="clusterIPs", default=None)
    ip_families: tuple[Literal["IPv4", "IPv6"], ...] | None = None
    ports: tuple[ServicePortSpec, ...] | None = None
    external_ips: tuple[str, ...] | None = msgspec.field(name="externalIPs", default=None)
    session_affinity: Literal["None", "ClientIP"] | None = None
    session_affinity_config: SessionAffinityConfig | None = None
    external_traffic_policy: Literal["Cluster", "Local"] | None = None
    internal_traffic_policy: Literal["Cluster", "Local"] | None = None
    load_balancer_source_ranges: tuple[str, ...] | None = None
    health_check_node_port: int | None = None


class LoadBalancerIngress(_Struct, frozen=True):
    """core/v1 LoadBalancerIngress. No ``ip``: a host name, which a proxy ignores."""

    ip: str | None = None
    ip_mode: str | None = None


class LoadBalancerStatus(_Struct, frozen=True):
    """core/v1 LoadBalancerStatus."""

    ingress: tuple[LoadBalancerIngress, ...] | None = None


class ServiceStatus(_Struct, frozen=True):
    """core/v1 ServiceStatus."""

    load_balancer: LoadBalancerStatus | None = None


class Service(_Struct, frozen=True, tag_field="kind", tag="Service"):
    """core/v1 Service."""

    metadata: ObjectMeta
    spec: ServiceSpec
    status: ServiceStatus | None = None


# --- discovery.k8s.io/v1 EndpointSlice -------------------------------------------------------------------------------


class EndpointConditions(_Struct, frozen=True):
    """discovery/v1 EndpointConditions. Unset: ready and serving, not terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Hint(_Struct, frozen=True):
    """discovery/v1 ForZone and ForNode."""

    name: str


class EndpointHints(_Struct, frozen=True):
    """discovery/v1 EndpointHints."""

    for_zones: tuple[Hint, ...] | None = None
    for_nodes: tuple[Hint, ...] | None = None


class EndpointEntry(_Struct, frozen=True):
    """discovery/v1 Endpoint. Only the first address counts."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions | None = None
    node_name: str | None = None
    hints: EndpointHints | None = None


class EndpointPort(_Struct, frozen=True):
    """discovery/v1 EndpointPort. No ``port``: contributes nothing. No ``name``: the empty name."""

    name: str | None = None
    port: int | None = None
    protocol: Protocol | None = None


class EndpointSlice(_Struct, frozen=True, tag_field="kind", tag="EndpointSlice"):
    """discovery.k8s.io/v1 EndpointSlice."""

    metadata: ObjectMeta
    address_type: Literal["IPv4", "IPv6", "FQDN"]
    endpoints: tuple[EndpointEntry, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None


# --- core/v1 Node ----------------------------------------------------------------------------------------------------


class Taint(_Struct, frozen=True):
    """core/v1 Taint."""

    key: str


class NodeSpec(_Struct, frozen=True):
    """core/v1 NodeSpec."""

    pod_cidr: str | None = msgspec.field(name="podCIDR", default=None)
    pod_cidrs: tuple[str, ...] | None = msgspec.field(name="podCIDRs", default=None)
    taints: tuple[Taint, ...] | None = None


class NodeAddress(_Struct, frozen=True):
    """core/v1 NodeAddress. ``type`` is InternalIP, ExternalIP, Hostname, …; host names stay as they are."""

    type: str
    address: str


class NodeStatus(_Struct, frozen=True):
    """core/v1 NodeStatus."""

    addresses: tuple[NodeAddress, ...] | None = None


class Node(_Struct, frozen=True, tag_field="kind", tag="Node"):
    """core/v1 Node."""

    metadata: ObjectMeta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


# --- networking.k8s.io/v1 ServiceCIDR --------------------------------------------------------------------------------


class ServiceCIDRSpec(_Struct, frozen=True):
    """networking/v1 ServiceCIDRSpec."""

    cidrs: tuple[str, ...] | None = None


class ServiceCIDR(_Struct, frozen=True, tag_field="kind", tag="ServiceCIDR"):
    """networking.k8s.io/v1 ServiceCIDR."""

    metadata: ObjectMeta
    spec: ServiceCIDRSpec | None = None


KubeObject = Service | EndpointSlice | Node | ServiceCIDR
