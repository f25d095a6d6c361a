"""The objects in the API server: Nodes for all seeds, a seed's Services and EndpointSlices, and markers."""

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cluster.api import Api, ApiError
from cluster.differential.generate import NAMESPACE, SERVICE_NAME_LABEL, TARGETS, Made, host_addresses
from cluster.differential.ground import NODE
from cluster.differential.states import ZONES
from netns import addresses as plan
from netns.addresses import FAMILIES, Family, Pair
from netns.manifests import Manifest, node
from netns.world import Node

MARKER_PORT = 9
"""The port of Services that :meth:`Objects.serve` makes."""
ZONE_ENDPOINTS = ("pod-a1", "pod-b1")
"""The endpoints of :meth:`Objects.mark_zones`: for the node's own zone, and for another."""
_ZONE_LABEL = "topology.kubernetes.io/zone"
_CONNECTIONS = 8


class Objects:
    """What is in the API server on behalf of these tests.

    Args:
        api: the API server.
        nodes: the network's nodes; they become Nodes, in a zone each.
    """

    def __init__(self, api: Api, nodes: Sequence[Node]) -> None:
        self._api = api
        self._names = [one.name for one in nodes]
        self._made: list[Manifest] = []
        self._numbers = itertools.count(1)
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for number, one in enumerate(nodes):
            manifest = node(one, **{_ZONE_LABEL: ZONES[number]})
            status = manifest.pop("status")
            api.patch_status(api.create(manifest), status)

    def close(self) -> None:
        """Remove all of it."""
        self.clear()
        for name in self._names:
            self._api.delete({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        self._api.delete({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})

    def clear(self) -> None:
        """Remove all Services and EndpointSlices."""
        objects, self._made = self._made, []
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            for done in [pool.submit(self._api.delete, one) for one in objects]:
                done.result()

    def label_zone(self, zone: str | None) -> None:
        """Say in which zone the node of the proxies is; None: in none."""
        which = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        self._api.patch(which, {"metadata": {"labels": {_ZONE_LABEL: zone}}})

    def create(self, wanted: Iterable[Made]) -> tuple[dict[str, Manifest], dict[str, str]]:
        """Create Services with their statuses and slices.

        Returns:
            By name: the Services as the API server has them; and why it refused those that it takes for invalid.
        """
        lock = threading.Lock()
        services: dict[str, Manifest] = {}
        refused: dict[str, str] = {}

        def create(made: Made) -> None:
            try:
                service = self._api.create(made.service)
            except ApiError as error:
                if error.code != 422:
                    raise
                with lock:
                    refused[made.name] = str(error)
                return
            with lock:
                self._made.append(service)
            if made.status is not None:
                service = self._api.patch_status(service, {"loadBalancer": made.status})
            for one in made.slices:
                self._api.create(one)
                with lock:
                    self._made.append(one)
            with lock:
                services[made.name] = service

        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            for done in [pool.submit(create, made) for made in wanted]:
                done.result()
        return services, refused

    def mark(self) -> Pair:
        """Make a Service that has an endpoint, and return its ClusterIPs."""
        return self.serve(lambda family: [{"addresses": [plan.pod_address(0, 99).of(family)]}])

    def mark_zones(self) -> Pair:
        """Make a Service that has an endpoint for this zone and one for another, and return its ClusterIPs."""

        def endpoints(family: Family) -> list[Manifest]:
            return [
                {"addresses": [host_addresses(name).of(family)], "hints": {"forZones": [{"name": zone}]}}
                for name, zone in zip(ZONE_ENDPOINTS, ZONES[:2], strict=True)
            ]

        return self.serve(endpoints)

    def serve(self, endpoints: Callable[[Family], list[Manifest]], **spec: Any) -> Pair:
        """Make a Service with one slice in each family.

        Args:
            endpoints: the slice's endpoints, by family.
            spec: more fields of the Service's spec.

        Returns:
            Its ClusterIPs.
        """
        name = f"marker-{next(self._numbers)}"
        whole = {"ipFamilyPolicy": "RequireDualStack", "ports": [{"protocol": "TCP", "port": MARKER_PORT}], **spec}
        metadata: Manifest = {"name": name, "namespace": NAMESPACE}
        service = self._api.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": whole})
        self._made.append(service)
        for family in FAMILIES:
            labelled = {"namespace": NAMESPACE, "labels": {SERVICE_NAME_LABEL: name}}
            one = {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": f"{name}-v{family}", **labelled},
                "addressType": f"IPv{family}",
                "endpoints": endpoints(family),
                "ports": [{"name": "", "protocol": "TCP", "port": TARGETS[0]}],
            }
            self._made.append(self._api.create(one))
        by_family = {":" in address: address for address in service["spec"]["clusterIPs"]}
        return Pair(by_family[False], by_family[True])
