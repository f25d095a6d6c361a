"""The node this proxy runs on: its addresses, families, zone, pod CIDRs, and how local traffic is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from nodeproxy.kube.addresses import Family


@dataclass(frozen=True, slots=True)
class LocalDetector:
    """How a packet from a pod of this node is recognised: by source CIDR or by input interface."""

    kind: Literal["cidr", "interface", "interface-prefix"]
    value: str


@dataclass(frozen=True, slots=True)
class NodePortAddresses:
    """Which of the node's addresses accept NodePort traffic in one family.

    Attributes:
        match_all: every local address but loopback; ``cidrs`` is then empty.
        cidrs: addresses within any of these; empty: none.
    """

    match_all: bool
    cidrs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeView:
    """What the proxy needs to know of its own node.

    Attributes:
        name: the Node's name, as ``nodeName`` in endpoint slices has it.
        zone: label topology.kubernetes.io/zone; empty if unknown.
        addresses: the node's address per family; a family without one is missing.
        primary: the family of the first address.
        pod_cidrs: ``spec.podCIDRs``.
    """

    name: str
    zone: str = ""
    addresses: Mapping[Family, str] = field(default_factory=dict)
    primary: Family = Family.IPV4
    pod_cidrs: tuple[str, ...] = ()
