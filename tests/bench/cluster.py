"""A cluster of any size, the same each time: the JSON of its objects, as an API server would send it."""

import ipaddress
import json
from collections.abc import Iterator
from typing import Any

NODE = "node-0"
CLUSTER_CIDR = "10.128.0.0/9"
_NODES = 100  # an endpoint in a hundred is on the own node
_PODS = int(ipaddress.IPv4Address("10.128.0.0"))
_MOVED_PODS = int(ipaddress.IPv4Address("10.64.0.0"))
_CLUSTER_IPS = int(ipaddress.IPv4Address("10.96.0.0"))
_CREATED = "2024-01-01T00:00:00Z"
_PER_NAMESPACE = 50


def objects(services: int, endpoints: int = 10) -> Iterator[bytes]:
    """All objects: the own Node, the ServiceCIDR, and each Service followed by its EndpointSlice.

    Args:
        services: how many Services.
        endpoints: how many endpoints each has.
    """
    yield node()
    yield service_cidr()
    for number in range(services):
        yield service(number)
        yield endpoint_slice(number, endpoints)


def node() -> bytes:
    """The Node that the proxy runs on."""
    return _json(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE, "labels": {"topology.kubernetes.io/zone": "zone-0"}},
            "spec": {"podCIDR": "10.128.0.0/24", "podCIDRs": ["10.128.0.0/24"]},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
        }
    )


def service_cidr() -> bytes:
    """The range that ClusterIPs come from."""
    return _json(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": ["10.96.0.0/12"]},
        }
    )


def service(number: int) -> bytes:
    """A ClusterIP Service with one TCP port."""
    address = cluster_ip(number)
    title = name(number)
    body = {
        "clusterIP": address,
        "clusterIPs": [address],
        "internalTrafficPolicy": "Cluster",
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
        "selector": {"app": title},
        "sessionAffinity": "None",
        "type": "ClusterIP",
    }
    return _json(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {**_metadata(number, title), "labels": {"app": title}},
            "spec": body,
            "status": {"loadBalancer": {}},
        }
    )


def endpoint_slice(number: int, endpoints: int = 10, version: int = 0) -> bytes:
    """The EndpointSlice of a Service.

    Args:
        number: the Service's number.
        endpoints: how many endpoints it has.
        version: each makes the last endpoint another pod; 0 is how it begins.
    """
    title = name(number)
    return _json(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                **_metadata(number, f"{title}-x7k2p"),
                "labels": {
                    "app": title,
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                    "kubernetes.io/service-name": title,
                },
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": [
                _endpoint(number, index, address) for index, address in enumerate(pods(number, endpoints, version))
            ],
        }
    )


def bundle(number: int, endpoints: int = 10, version: int = 0) -> bytes:
    """A Service and its EndpointSlice as one ``List``: what a file of manifests holds."""
    items = b",".join((service(number), endpoint_slice(number, endpoints, version)))
    return b'{"apiVersion":"v1","kind":"List","items":[' + items + b"]}"


def created(document: bytes) -> dict[str, Any]:
    """An object as one hands it to a real API server to create it, or to replace what is there.

    Without what the server decides itself; and without a selector, so that no controller makes slices beside these or
    takes them for its own.
    """
    found: dict[str, Any] = json.loads(document)
    for name in ("creationTimestamp", "resourceVersion", "uid"):
        found["metadata"].pop(name, None)
    found["metadata"].get("labels", {}).pop("endpointslice.kubernetes.io/managed-by", None)
    if found["kind"] == "Service":
        found["spec"].pop("selector")
    if found["kind"] != "Node":  # a real server takes a status of Nodes only
        found.pop("status", None)
    return found


def creatable(first: int, last: int, endpoints: int = 10) -> Iterator[dict[str, Any]]:
    """Services from the number ``first`` to before ``last`` and their slices, as :func:`created`."""
    for number in range(first, last):
        yield created(service(number))
        yield created(endpoint_slice(number, endpoints))


def namespaces(first: int, last: int) -> Iterator[dict[str, Any]]:
    """The namespaces of these Services that those before ``first`` are not in."""
    known = {namespace(number) for number in range(first)}
    for title in sorted({namespace(number) for number in range(first, last)} - known):
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": title}}


def cluster_ip(number: int) -> str:
    """The ClusterIP of a Service."""
    return _address(_CLUSTER_IPS, 10 + number)


def pods(number: int, endpoints: int = 10, version: int = 0) -> list[str]:
    """The addresses of a Service's endpoints."""
    found = [_address(_PODS, 256 + number * endpoints + index) for index in range(endpoints)]
    if version:
        found[-1] = _address(_MOVED_PODS, version)
    return found


def namespace(number: int) -> str:
    """The namespace of a Service."""
    return f"team-{number // _PER_NAMESPACE:03}"


def node_of(number: int, index: int) -> str:
    """The node that an endpoint of a Service is on."""
    return f"node-{(number + index * 7) % _NODES}"


def _endpoint(number: int, index: int, address: str) -> dict[str, Any]:
    return {
        "addresses": [address],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "nodeName": node_of(number, index),
        "targetRef": {
            "kind": "Pod",
            "name": f"{name(number)}-5d9c7b6f4-{index:05}",
            "namespace": namespace(number),
            "uid": _uid(number, index + 1),
        },
        "zone": f"zone-{index % 3}",
    }


def _metadata(number: int, title: str) -> dict[str, Any]:
    return {
        "name": title,
        "namespace": namespace(number),
        "creationTimestamp": _CREATED,
        "resourceVersion": str(1_000_000 + number),
        "uid": _uid(number, 0),
    }


def name(number: int) -> str:
    """The name of a Service."""
    return f"service-{number:05}"


def _uid(number: int, index: int) -> str:
    return f"{number:08x}-0000-4000-8000-{index:012x}"


def _address(first: int, offset: int) -> str:
    return str(ipaddress.IPv4Address(first + offset))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
