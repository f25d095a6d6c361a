"""From manifests to the table that kube-proxy would have left for them."""

from collections.abc import Iterable, Sequence
from typing import cast

from layouts import kube_proxy
from layouts.kube_proxy import Version
from layouts.services import Endpoint, Node, Service
from netns import addresses as plan
from netns.addresses import FAMILIES, Family, Pair
from netns.manifests import Manifest
from netns.world import Node as WorldNode


def layout_node(node: WorldNode, family: Family) -> Node:
    """What a world's node puts into the table, with the flags that :class:`netns.agent.Agent` has by default."""
    return Node(
        address=node.address(family),
        pod_range=plan.CLUSTER.of(family),
        node_port_addresses=(node.address(family),),
        service_ranges=(plan.SERVICES.of(family),),
    )


def layout_services(manifests: Iterable[Manifest], family: Family, node_name: str) -> list[Service]:
    """The service ports of a family, out of Services and EndpointSlices as :mod:`netns.manifests` makes them.

    Only what those make is understood: every endpoint is ready, every Service has an EndpointSlice or none.
    """
    manifests = list(manifests)
    slices = {
        (slice_["metadata"]["namespace"], slice_["metadata"]["labels"]["kubernetes.io/service-name"]): slice_
        for slice_ in manifests
        if slice_["kind"] == "EndpointSlice" and slice_["addressType"] == f"IPv{family}"
    }
    return [
        _service_port(manifest, entry, family, _endpoints(manifest, entry, slices, node_name))
        for manifest in manifests
        if manifest["kind"] == "Service" and f"IPv{family}" in manifest["spec"]["ipFamilies"]
        for entry in manifest["spec"]["ports"]
    ]


def _service_port(manifest: Manifest, entry: Manifest, family: Family, endpoints: tuple[Endpoint, ...]) -> Service:
    spec = manifest["spec"]

    def ours(addresses: Iterable[str]) -> tuple[str, ...]:
        return tuple(address for address in addresses if (":" in address) == (family == 6))

    ingress = manifest.get("status", {}).get("loadBalancer", {}).get("ingress", [])
    affinity = spec.get("sessionAffinityConfig", {}).get("clientIP", {}).get("timeoutSeconds", 0)
    return Service(
        namespace=manifest["metadata"]["namespace"],
        name=manifest["metadata"]["name"],
        cluster_ip=spec["clusterIPs"][spec["ipFamilies"].index(f"IPv{family}")],
        port=entry["port"],
        endpoints=endpoints,
        protocol=entry["protocol"].lower(),
        port_name=entry["name"],
        node_port=entry.get("nodePort", 0),
        external_ips=ours(spec.get("externalIPs", ())),
        vips=ours(one["ip"] for one in ingress),
        source_ranges=ours(text.strip() for text in spec.get("loadBalancerSourceRanges", ())),
        external_local=spec.get("externalTrafficPolicy") == "Local",
        internal_local=spec.get("internalTrafficPolicy") == "Local",
        affinity_seconds=affinity,
    )


def _endpoints(
    manifest: Manifest, entry: Manifest, slices: dict[tuple[str, str], Manifest], node_name: str
) -> tuple[Endpoint, ...]:
    slice_ = slices.get((manifest["metadata"]["namespace"], manifest["metadata"]["name"]))
    if slice_ is None:
        return ()
    (target,) = (
        port["port"]
        for port in slice_["ports"]
        if (port["name"], port["protocol"]) == (entry["name"], entry["protocol"])
    )
    return tuple(
        Endpoint(one["addresses"][0], cast("int", target), local=one["nodeName"] == node_name)
        for one in slice_["endpoints"] or ()
    )


def tables(manifests: Sequence[Manifest], node: WorldNode, version: Version) -> Pair:
    """The tables of both families for the Services of manifests on a node, as text for ``nft -f``."""
    v4, v6 = (
        kube_proxy.table_text(family, layout_services(manifests, family, node.name), version, layout_node(node, family))
        for family in FAMILIES
    )
    return Pair(v4, v6)
