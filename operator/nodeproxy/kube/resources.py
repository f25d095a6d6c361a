"""The resources that are listed and watched, and which of their objects."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of objects as the API serves it.

    Attributes:
        kind: of the objects.
        path: of the collection, over all namespaces.
        selectors: query parameters that choose objects.
        wishes: such parameters that older API servers do not know; what they leave out does no harm.
        optional: API servers may not have it, or not show it; the agent goes on without.
        never_empty: every working cluster has some; a list without any is doubted.
    """

    kind: str
    path: str
    selectors: Mapping[str, str] = field(default_factory=dict)
    wishes: Mapping[str, str] = field(default_factory=dict)
    optional: bool = False
    never_empty: bool = False


def resources(node_name: str) -> tuple[Resource, ...]:
    """What a proxy on this node follows.

    Services of another proxy and endpoint slices of headless Services are left to the API server to leave out, and so
    are headless Services where it can select by ``spec.clusterIP``. ServiceCIDRs are stable since Kubernetes 1.33
    (KEP-1880).
    """
    return (
        Resource(
            "Service",
            "/api/v1/services",
            {"labelSelector": "!service.kubernetes.io/service-proxy-name"},
            {"fieldSelector": "spec.clusterIP!=None"},
            never_empty=True,
        ),
        Resource(
            "EndpointSlice",
            "/apis/discovery.k8s.io/v1/endpointslices",
            {"labelSelector": "!service.kubernetes.io/headless"},
            never_empty=True,
        ),
        Resource("Node", "/api/v1/nodes", {"fieldSelector": f"metadata.name={node_name}"}),
        Resource("ServiceCIDR", "/apis/networking.k8s.io/v1/servicecidrs", optional=True),
    )
