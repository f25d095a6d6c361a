"""Kubernetes objects as a manifest has them, and the folder that the agent reads."""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from netns import addresses as plan
from netns.addresses import FAMILIES, Family, Pair
from netns.servers import Protocol
from netns.world import Host, Node, Pod, World

Manifest = dict[str, Any]
NAMESPACE = "test"


def port(number: int, protocol: Protocol = "TCP", *, name: str | None = None, node_port: int = 0) -> Manifest:
    """A ServicePort; its name is ``p80`` for port 80 over TCP, ``p80-udp`` over UDP, unless given."""
    entry: Manifest = {"name": port_name(number, protocol) if name is None else name, "port": number}
    entry["protocol"] = protocol
    return entry | ({"nodePort": node_port} if node_port else {})


def port_name(number: int, protocol: Protocol) -> str:
    """The name that :func:`port` gives."""
    return f"p{number}" if protocol == "TCP" else f"p{number}-{protocol.lower()}"


def both(number: int, *, node_port: int = 0) -> list[Manifest]:
    """The same port over TCP and UDP."""
    return [port(number, "TCP", node_port=node_port), port(number, "UDP", node_port=node_port)]


def service(
    name: str,
    number: int,
    ports: Sequence[Manifest],
    *,
    namespace: str = NAMESPACE,
    families: Sequence[Family] = FAMILIES,
    vips: Sequence[Pair] = (),
    affinity_seconds: int = 0,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Manifest:
    """A Service with the ``number``-th ClusterIP of each family.

    Args:
        name: its name.
        number: see :func:`netns.addresses.host`.
        ports: see :func:`port`.
        namespace: its namespace.
        families: the families it has, in order.
        vips: load balancer addresses.
        affinity_seconds: ClientIP affinity for so long; 0: none.
        labels: its labels.
        spec: more fields of the spec, in Kubernetes' spelling, and overrides of the ones above.
    """
    cluster_ips = [plan.host(plan.SERVICES, number).of(family) for family in families]
    whole: Manifest = {
        "type": _type(ports, vips),
        "clusterIP": cluster_ips[0],
        "clusterIPs": cluster_ips,
        "ipFamilies": [f"IPv{family}" for family in families],
        "ports": list(ports),
    }
    if affinity_seconds:
        whole["sessionAffinity"] = "ClientIP"
        whole["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": affinity_seconds}}
    manifest: Manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
        "spec": whole | spec,
    }
    if vips:
        ingress = [{"ip": pair.of(family), "ipMode": "VIP"} for pair in vips for family in families]
        manifest["status"] = {"loadBalancer": {"ingress": ingress}}
    return manifest


def _type(ports: Sequence[Manifest], vips: Sequence[Pair]) -> str:
    if vips:
        return "LoadBalancer"
    return "NodePort" if any("nodePort" in entry for entry in ports) else "ClusterIP"


def endpoint(host: Host, family: Family, **fields: Any) -> Manifest:
    """An EndpointSlice's entry for a pod, or for a node (a pod on the host's network); ``fields`` are added to it."""
    node = host.node if isinstance(host, Pod) else host
    return {"addresses": [host.address(family)], "conditions": {"ready": True}, "nodeName": node.name} | fields


def endpoint_slice(
    service_name: str,
    family: Family,
    endpoints: Sequence[Manifest],
    ports: Sequence[Manifest],
    *,
    namespace: str = NAMESPACE,
    suffix: str = "",
) -> Manifest:
    """An EndpointSlice of a Service.

    Args:
        service_name: the Service it belongs to.
        family: its address type.
        endpoints: see :func:`endpoint`.
        ports: entries with ``name``, ``port`` and ``protocol``.
        namespace: its namespace.
        suffix: tells several slices of one family apart.
    """
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{service_name}-v{family}{suffix}",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service_name},
        },
        "addressType": f"IPv{family}",
        "endpoints": list(endpoints),
        "ports": list(ports),
    }


def backends(
    service_manifest: Manifest, hosts: Iterable[Host], target: int | None = None, **fields: Any
) -> list[Manifest]:
    """The EndpointSlices, one per family of a Service, that put hosts behind every port of it.

    Args:
        service_manifest: the Service.
        hosts: pods, or nodes for pods on the host's network.
        target: the port that they serve; None: the Service's own.
        fields: added to each endpoint.
    """
    hosts = list(hosts)
    metadata, spec = service_manifest["metadata"], service_manifest["spec"]
    ports = [
        {"name": entry["name"], "protocol": entry["protocol"], "port": target or entry["port"]}
        for entry in spec["ports"]
    ]
    families: list[Family] = [4 if name == "IPv4" else 6 for name in spec["ipFamilies"]]
    return [
        endpoint_slice(
            metadata["name"],
            family,
            [endpoint(host, family, **fields) for host in hosts],
            ports,
            namespace=metadata["namespace"],
        )
        for family in families
    ]


def node(node_: Node, **labels: str) -> Manifest:
    """A Node object: addresses of both families, pod CIDRs, labels."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node_.name, "labels": labels},
        "spec": {"podCIDR": node_.pod_range.v4, "podCIDRs": list(node_.pod_range)},
        "status": {"addresses": [{"type": "InternalIP", "address": address} for address in node_.addresses]},
    }


def service_cidr() -> Manifest:
    """The ServiceCIDR of both families."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": list(plan.SERVICES)},
    }


def cluster(world: World) -> list[Manifest]:
    """What every cluster has: its Nodes and its ServiceCIDR."""
    return [*(node(one) for one in world.nodes.values()), service_cidr()]


class ManifestFolder:
    """A folder of manifests that is only ever changed by renames, so that no reader sees half a file.

    Attributes:
        path: the folder; it is gone after :meth:`close`.
    """

    def __init__(self) -> None:
        self._top = Path(tempfile.mkdtemp(prefix="manifests-"))
        self.path = self._top / "manifests"
        self.path.mkdir()

    def stage(self, objects: Sequence[Manifest]) -> Path:
        """Write objects next to the folder, on the same file system, to be renamed into it."""
        return self.stage_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def stage_text(self, text: str) -> Path:
        """Write text next to the folder."""
        with tempfile.NamedTemporaryFile("w", dir=self._top, delete=False) as file:
            file.write(text)
        return Path(file.name)

    def write(self, name: str, objects: Sequence[Manifest]) -> None:
        """Put a file of objects in place, in one step."""
        self.stage(objects).rename(self.path / f"{name}.json")

    def write_text(self, name: str, text: str) -> None:
        """Put a file with any text in place, in one step."""
        self.stage_text(text).rename(self.path / f"{name}.json")

    def delete(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        with contextlib.suppress(FileNotFoundError):
            self.file(name).unlink()

    def file(self, name: str) -> Path:
        """Where a file is."""
        return self.path / f"{name}.json"

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._top, ignore_errors=True)
