"""The resources that the server knows: where they are served, and what an empty object of each looks like."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of the API.

    Attributes:
        kind: as ``EndpointSlice``.
        group_version: as ``discovery.k8s.io/v1``; ``v1`` for the core group.
        plural: as ``endpointslices``.
        namespaced: whether its objects live in namespaces.
        fields: what field selectors may ask for, beside metadata.name and metadata.namespace.
        empty: what an object without content carries beside its metadata; bookmarks are such.
    """

    kind: str
    group_version: str
    plural: str
    namespaced: bool
    fields: tuple[str, ...]
    empty: dict[str, Any]

    @property
    def path(self) -> str:
        """Where all of its objects are listed and watched."""
        root = "api" if self.group_version == "v1" else "apis"
        return f"/{root}/{self.group_version}/{self.plural}"

    @property
    def group_resource(self) -> str:
        """As messages of the API name it: ``endpointslices.discovery.k8s.io``."""
        group = self.group_version.rpartition("/")[0]
        return f"{self.plural}.{group}" if group else self.plural


RESOURCES = (
    Resource(
        "Service",
        "v1",
        "services",
        namespaced=True,
        fields=("spec.clusterIP", "spec.type"),
        empty={"spec": {}, "status": {"loadBalancer": {}}},
    ),
    Resource(
        "EndpointSlice",
        "discovery.k8s.io/v1",
        "endpointslices",
        namespaced=True,
        fields=(),
        empty={"addressType": "", "endpoints": None, "ports": None},
    ),
    Resource(
        "Node",
        "v1",
        "nodes",
        namespaced=False,
        fields=("spec.unschedulable",),
        empty={"spec": {}, "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": {}}},
    ),
    Resource("ServiceCIDR", "networking.k8s.io/v1", "servicecidrs", namespaced=False, fields=(), empty={}),
)
BY_KIND = {resource.kind: resource for resource in RESOURCES}
