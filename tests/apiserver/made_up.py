"""A large cluster, made up: Services with one EndpointSlice each."""

from collections.abc import Iterator
from typing import Any


def service(index: int, *, namespace: str = "made-up") -> dict[str, Any]:
    """A Service with one TCP port."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name(index),
            "namespace": namespace,
            "uid": f"00000000-0000-4000-8000-{index:012}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "clusterIP": _address("10.96", index),
            "clusterIPs": [_address("10.96", index)],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "type": "ClusterIP",
            "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster",
            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
            "selector": {"app": name(index)},
        },
        "status": {"loadBalancer": {}},
    }


def endpoint_slice(index: int, endpoints: int, *, namespace: str = "made-up") -> dict[str, Any]:
    """The EndpointSlice of a Service, with up to 64 endpoints."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{name(index)}-x",
            "namespace": namespace,
            "uid": f"00000000-0000-4000-9000-{index:012}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "kubernetes.io/service-name": name(index),
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": [_address("10.2", index * 64 + number)],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "nodeName": f"node-{number % 10}",
                "targetRef": {"kind": "Pod", "name": f"{name(index)}-{number}", "namespace": namespace},
                "zone": "zone-a",
            }
            for number in range(endpoints)
        ],
    }


def cluster(services: int, endpoints: int, node: str = "node-0") -> Iterator[dict[str, Any]]:
    """A Node, and Services with their EndpointSlices."""
    yield {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node},
        "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    }
    for index in range(services):
        yield service(index)
        yield endpoint_slice(index, endpoints)


def name(index: int) -> str:
    """Of a Service."""
    return f"service-{index:05}"


def _address(prefix: str, index: int) -> str:
    """An address below a prefix of 8 bits and the lowest 8 bits of another, with room for 4 million."""
    first, second = prefix.split(".")
    return f"{first}.{int(second) + index // 64_516}.{index // 254 % 254}.{index % 254 + 1}"
