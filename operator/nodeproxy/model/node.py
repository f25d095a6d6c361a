"""The node this proxy runs on: its addresses, families, zone, pod CIDRs, and how local traffic is told."""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from nodeproxy.kube.addresses import Family, canonical_address, contains, family_of
from nodeproxy.kube.objects import Node
from nodeproxy.model.settings import ProxySettings

_LOOPBACK = {Family.IPV4: "127.0.0.0/8", Family.IPV6: "::1/128"}
_EVERYTHING = {Family.IPV4: "0.0.0.0/0", Family.IPV6: "::/0"}
_HOST_BITS = {Family.IPV4: 32, Family.IPV6: 128}


class UnsupportedFamilyError(Exception):
    """The node's primary family cannot be served."""


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


def node_view(node: Node | None, name: str, bind_address: str = "") -> NodeView:
    """What the proxy needs to know of its own node.

    Of the Node's InternalIPs, then ExternalIPs, the first decides the primary family, and the first of each family
    is the node's address; entries that are no IP addresses are passed over.

    Args:
        node: the Node, or None while it is not known: then there is only what follows from the other arguments.
        name: its name, as the proxy was told. It is kept as it is, since slices name nodes exactly.
        bind_address: canonical; if it is a specific address (neither ``0.0.0.0`` nor ``::``), it stands for the
            node's address in its family, and makes that family the primary one.
    """
    addresses: dict[Family, str] = {}
    if bind_address and bind_address not in ("0.0.0.0", "::"):  # noqa: S104 - told apart, not bound to
        addresses[family_of(bind_address)] = bind_address
    for address in _node_addresses(node):
        addresses.setdefault(family_of(address), address)
    spec = node.spec if node is not None else None
    labels = node.metadata.labels if node is not None else None
    pod_cidrs = ((spec.pod_cidrs or (spec.pod_cidr,)) if spec is not None else None) or ()
    return NodeView(
        name=name,
        zone=(labels.zone if labels is not None else None) or "",
        addresses=addresses,
        primary=next(iter(addresses), Family.IPV4),
        pod_cidrs=tuple(cidr for cidr in pod_cidrs if cidr),
    )


def _node_addresses(node: Node | None) -> list[str]:
    entries = (node.status.addresses if node is not None and node.status is not None else None) or ()
    found = []
    for wanted in ("InternalIP", "ExternalIP"):
        for entry in entries:
            if entry.type == wanted:
                try:
                    found.append(canonical_address(entry.address))
                except ValueError:
                    continue  # some clouds put host names here
    return found


def local_detector(settings: ProxySettings, node: NodeView, family: Family) -> LocalDetector | None:
    """How packets of this node's pods are recognised in one family; None: they cannot be told.

    Modes that go by CIDR take the first one of the family: of the cluster (ClusterCIDR), or of the Node (NodeCIDR).
    """
    match settings.detect_local_mode:
        case "ClusterCIDR":
            return _first_cidr(settings.cluster_cidrs, family)
        case "NodeCIDR":
            return _first_cidr(node.pod_cidrs, family)
        case "BridgeInterface":
            return LocalDetector("interface", settings.bridge_interface) if settings.bridge_interface else None
        case "InterfaceNamePrefix":
            prefix = settings.interface_name_prefix
            return LocalDetector("interface-prefix", prefix) if prefix else None


def _first_cidr(cidrs: Iterable[str], family: Family) -> LocalDetector | None:
    return next((LocalDetector("cidr", cidr) for cidr in cidrs if family_of(cidr) is family), None)


def node_port_addresses(settings: ProxySettings, node: NodeView, family: Family) -> NodePortAddresses:
    """Which of the node's addresses accept NodePort traffic in one family.

    ``primary`` is the node's own address of the family, unless that is a loopback address. Where a CIDR covers the
    whole family, every address is accepted. A family for which the list names nothing accepts on no address: who
    lists addresses of one family only has not asked to open all of the other.
    """
    cidrs: dict[str, None] = {}
    for entry in _wanted(settings):
        match entry:
            case "primary":
                address = node.addresses.get(family)
                if address and not _is_loopback(address):
                    cidrs[f"{address}/{_HOST_BITS[family]}"] = None
            case "all":
                cidrs[_EVERYTHING[family]] = None
            case "localhost":
                cidrs[_LOOPBACK[family]] = None
            case _ if family_of(entry) is family:
                cidrs[entry] = None
            case _:
                pass  # belongs to the other family
    if _EVERYTHING[family] in cidrs:
        return NodePortAddresses(match_all=True)
    return NodePortAddresses(match_all=False, cidrs=tuple(cidrs))


def node_port_warnings(settings: ProxySettings, node: NodeView) -> tuple[str, ...]:
    """Sentences about NodePort addresses that an administrator may not have meant; empty if all is well.

    They say that ``primary`` cannot be resolved, and that a family of a dual-stack node accepts on no address. A
    node counts as dual-stack if it has addresses or pod CIDRs of both families, or the cluster has pod CIDRs of both.
    """
    entries = _wanted(settings)
    text = ", ".join(entries)
    if "primary" in entries and all(_is_loopback(address) for address in node.addresses.values()):
        subject = f"Node {node.name}" if node.name else "this node"
        sentences = [f'nodePortAddresses: "primary" stands for nothing, because no address of {subject} is known.']
    else:
        sentences = []
    if not _dual_stack(settings, node):
        return tuple(sentences)
    for family in Family:
        accepted = node_port_addresses(settings, node, family)
        if not accepted.match_all and not accepted.cidrs:
            sentences.append(
                f"nodePortAddresses ({text}) holds no {family.label} address of this dual-stack node, so NodePorts "
                f"are not reachable over {family.label}."
            )
    return tuple(sentences)


def select_node_port_addresses(wanted: NodePortAddresses, present: Iterable[str]) -> tuple[str, ...]:
    """The addresses on the node's interfaces that accept NodePort traffic, sorted as text, without loopback.

    Args:
        wanted: for one family. Where it matches all, the rules ask the kernel instead, and nothing is listed.
        present: canonical addresses on the node's interfaces, of any family, in any order.
    """
    return tuple(
        sorted(
            {
                address
                for address in present
                if any(contains(cidr, address) for cidr in wanted.cidrs) and not _is_loopback(address)
            }
        )
    )


def served_families(primary: Family, ipv6_usable: bool) -> tuple[Family, ...]:
    """The families to make rules for, the primary one first.

    Both, whether or not the node or the cluster is dual-stack, unless IPv6 is missing or disabled in the kernel.
    IPv4 is always there.

    Raises:
        UnsupportedFamilyError: the primary family is IPv6, and IPv6 is not usable.
    """
    if ipv6_usable:
        return (primary, Family.IPV4 if primary is Family.IPV6 else Family.IPV6)
    if primary is Family.IPV6:
        msg = 'no support for primary IP family "IPv6": it is missing or disabled in the kernel'
        raise UnsupportedFamilyError(msg)
    return (Family.IPV4,)


def _wanted(settings: ProxySettings) -> tuple[str, ...]:
    return settings.node_port_addresses or ("primary",)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _dual_stack(settings: ProxySettings, node: NodeView) -> bool:
    groups = (node.addresses.values(), node.pod_cidrs, settings.cluster_cidrs)
    return any(len({family_of(text) for text in group}) > 1 for group in groups)
