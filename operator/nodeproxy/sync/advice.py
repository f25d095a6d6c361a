"""Sentences about what an administrator may not have meant, for the log and for `render`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nodeproxy.kube.addresses import Family
from nodeproxy.model.node import (
    NodeView,
    local_detector,
    node_port_addresses,
    node_port_warnings,
    select_node_port_addresses,
)
from nodeproxy.model.settings import ProxySettings


@dataclass(frozen=True, slots=True)
class Situation:
    """What advice depends on.

    Attributes:
        settings: the administrator's decisions.
        node: the own node.
        node_known: whether there is a Node of its name.
        families: the families served.
        present: canonical addresses that the node has, where NodePorts can be served.
        services: how many Services there are.
        source: where objects come from.
        source_behind: the Service, as namespace/name, that has the source's address; empty: none has.
    """

    settings: ProxySettings
    node: NodeView
    node_known: bool
    families: Iterable[Family]
    present: tuple[str, ...]
    services: int
    source: str = ""
    source_behind: str = ""


def advice(situation: Situation) -> Iterator[str]:
    """One sentence for each thing that looks wrong."""
    settings, node = situation.settings, situation.node
    if not situation.services:
        yield "there is no Service at all: every rule for Services has been, or will be, removed"
    if situation.source_behind:
        yield (
            f"the API server's address, {situation.source}, is one of Service {situation.source_behind}, which this"
            " node serves: without rules in place the agent can't reach it; give it an address of its own (--master,"
            " --kubeconfig, KUBERNETES_SERVICE_HOST)"
        )
    if not situation.node_known:
        yield f"there is no Node {node.name}: its addresses, zone and pod CIDRs are unknown (see --hostname-override)"
    yield from node_port_warnings(settings, node)
    for family in situation.families:
        wanted = node_port_addresses(settings, node, family)
        if wanted.cidrs and not select_node_port_addresses(wanted, situation.present):
            yield (
                f"no interface of this node has an {family.label} address that accepts NodePort traffic"
                f" ({', '.join(wanted.cidrs)}, loopback left out): NodePorts are not served over {family.label}"
            )
    for family in situation.families:
        if local_detector(settings, node, family) is not None or family not in {node.primary, *node.addresses}:
            continue
        missing = {
            "ClusterCIDR": f"no {family.label} cluster CIDR is given (--cluster-cidr)",
            "NodeCIDR": f"the Node states no {family.label} pod CIDR",
        }.get(settings.detect_local_mode, "no interface is named")
        yield (
            f"{family.label} traffic of local pods can't be told, since {missing}: traffic to ClusterIPs is not"
            " masqueraded, and pods are not short-circuited to all endpoints under externalTrafficPolicy Local"
        )
