"""What the administrator decides about traffic. Built and validated by :mod:`nodeproxy.config`; immutable."""

from dataclasses import dataclass
from typing import Literal

DetectLocalMode = Literal["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]
EndpointChains = Literal["WhenAffinity", "Always"]


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Settings that shape the rules.

    Attributes:
        detect_local_mode: how traffic from local pods is told.
        cluster_cidrs: pod ranges of the cluster, at most one per family (mode ClusterCIDR).
        bridge_interface: name of the pods' bridge (mode BridgeInterface).
        interface_name_prefix: prefix of the pods' interfaces (mode InterfaceNamePrefix).
        node_port_addresses: canonical CIDRs and the keywords ``primary``, ``all``, ``localhost``; empty: primary.
        bind_address: canonical address that stands for the node's in its family; empty: detect.
        masquerade_all: masquerade all traffic to ClusterIPs.
        masquerade_bit: bit of the packet mark, 0..31.
        endpoint_chains: a chain per endpoint where affinity needs it, or for every endpoint, with counters.
    """

    detect_local_mode: DetectLocalMode = "ClusterCIDR"
    cluster_cidrs: tuple[str, ...] = ()
    bridge_interface: str = ""
    interface_name_prefix: str = ""
    node_port_addresses: tuple[str, ...] = ()
    bind_address: str = ""
    masquerade_all: bool = False
    masquerade_bit: int = 14
    endpoint_chains: EndpointChains = "WhenAffinity"
