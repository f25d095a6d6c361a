"""The demo's manifests as the demo looks at them: which pods there are, and which addresses lead to which."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from netns import addresses as plan
from netns.manifests import ManifestFolder
from netns.servers import Protocol


@dataclass(frozen=True)
class Backend:
    """A pod's port that an EndpointSlice names."""

    service: str
    pod: str
    address: str
    port: int
    protocol: Protocol


@dataclass(frozen=True)
class Frontend:
    """An address and port that a Service is reached at.

    Attributes:
        service: ``namespace/name``.
        kind: ClusterIP, NodePort or LoadBalancer.
        address: where to connect.
        port: likewise.
        protocol: TCP or UDP.
        source: the address that the client outside uses; None: its own.
        ranged: whether the Service has source ranges.
        outside_ranges: whether that address lies outside of the Service's source ranges.
        local_only: whether outside traffic goes to pods of the same node only.
        sticky: whether a client stays with its pod.
    """

    service: str
    kind: str
    address: str
    port: int
    protocol: Protocol
    source: str | None = None
    ranged: bool = False
    outside_ranges: bool = False
    local_only: bool = False
    sticky: bool = False

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        suffix = " other net" if self.outside_ranges else ""
        return f"{address}:{self.port}/{self.protocol.lower()}{suffix}"

    def closed_to(self, origin: str) -> bool:
        """Whether source ranges keep out who comes from a place; only the client outside can be within them."""
        return self.outside_ranges or (self.ranged and origin != "from outside")


class Shop:
    """A folder of manifests, read once.

    Attributes:
        pods: the node of each pod, in the order of their addresses.
        backends: every pod's port that some Service leads to.
        frontends: every address of every Service that node-a answers for.
        files: the names of the folder's files.
    """

    def __init__(self, folder: Path) -> None:
        self._files = {path.name: list(yaml.safe_load_all(path.read_text())) for path in sorted(folder.glob("*.yaml"))}
        self.files = list(self._files)
        objects = [document for documents in self._files.values() for document in documents]
        slices = [document for document in objects if document["kind"] == "EndpointSlice"]
        self.pods: dict[str, str] = {}
        self.backends: list[Backend] = []
        for document in slices:
            self._read_slice(document)
        self.frontends = [
            frontend
            for document in objects
            if document["kind"] == "Service"
            for port in document["spec"]["ports"]
            for frontend in _frontends(document, port)
        ]

    def pods_of(self, frontend: Frontend) -> set[str]:
        """The pods that may answer at a frontend."""
        family6 = ":" in frontend.address
        return {
            backend.pod
            for backend in self.backends
            if backend.service == frontend.service and (":" in backend.address) == family6
        }

    def remove(self, pod: str, folder: ManifestFolder) -> None:
        """Take a pod out of the EndpointSlices, here and in a copy of the folder."""
        for name, documents in self._files.items():
            touched = False
            for document in documents:
                endpoints = document.get("endpoints") or []
                kept = [entry for entry in endpoints if entry["targetRef"]["name"] != pod]
                if len(kept) != len(endpoints):
                    document["endpoints"], touched = kept, True
            if touched:
                folder.stage_text(yaml.safe_dump_all(documents)).rename(folder.path / name)
        self.backends = [backend for backend in self.backends if backend.pod != pod]

    def _read_slice(self, document: dict[str, Any]) -> None:
        metadata = document["metadata"]
        service = f"{metadata['namespace']}/{metadata['labels']['kubernetes.io/service-name']}"
        for entry in document["endpoints"]:
            pod = entry["targetRef"]["name"]
            self.pods.setdefault(pod, entry["nodeName"])
            self.backends += [
                Backend(service, pod, entry["addresses"][0], port["port"], port["protocol"])
                for port in document["ports"]
            ]


def _frontends(document: dict[str, Any], port: dict[str, Any]) -> Iterator[Frontend]:
    spec, metadata = document["spec"], document["metadata"]
    service, protocol = f"{metadata['namespace']}/{metadata['name']}", port["protocol"]
    sticky, local = spec.get("sessionAffinity") == "ClientIP", spec.get("externalTrafficPolicy") == "Local"
    for address in spec["clusterIPs"]:
        yield Frontend(service, "ClusterIP", address, port["port"], protocol, sticky=sticky)
    if "nodePort" in port:
        node = plan.node_address(0).v4
        yield Frontend(service, "NodePort", node, port["nodePort"], protocol, local_only=local, sticky=sticky)
    for ingress in document.get("status", {}).get("loadBalancer", {}).get("ingress", []):
        ranged = bool(spec.get("loadBalancerSourceRanges"))
        sources = [(plan.host(plan.INSIDE, 2).v4, False)]
        if ranged:
            sources.append((plan.host(plan.OUTSIDE, 2).v4, True))
        for source, outside in sources:
            yield Frontend(
                service,
                "LoadBalancer",
                ingress["ip"],
                port["port"],
                protocol,
                source,
                ranged=ranged,
                outside_ranges=outside,
                local_only=local,
                sticky=sticky,
            )
