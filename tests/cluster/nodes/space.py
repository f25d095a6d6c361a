"""A Kubernetes namespace of a test's own: Deployments, whom their Pods are, and Services."""

import time
from typing import Any

from cluster.api import Object
from cluster.nodes.live import LiveCluster, deployment
from netns.addresses import Pair
from netns.recorded import TARGET
from netns.world import World

_PATIENCE = 30.0
BOTH: list[Object] = [
    {"name": kind.lower(), "protocol": kind, "port": 80, "targetPort": TARGET} for kind in ("TCP", "UDP")
]
"""Port 80 over both protocols."""
TCP = BOTH[:1]
"""Port 80 over TCP."""


class Space:
    """A namespace of the cluster, and what the tests do in it.

    Attributes:
        cluster: the cluster.
        world: its network.
        name: the namespace's name.
    """

    def __init__(self, cluster: LiveCluster, name: str) -> None:
        self.cluster = cluster
        self.world: World = cluster.world
        self.name = name
        self._api = cluster.plane.api

    def deploy(self, name: str, replicas: int, **more: Any) -> frozenset[str]:
        """Create a Deployment (:func:`cluster.nodes.live.deployment`), and return who its Pods are."""
        self._api.create(deployment(name, self.name, replicas, **more))
        return self.ends(name, replicas)

    def scale(self, name: str, replicas: int) -> frozenset[str]:
        """Scale a Deployment, and return who its Pods are then."""
        self._api.patch(self._deployment(name), {"spec": {"replicas": replicas}})
        return self.ends(name, replicas)

    def ends(self, name: str, replicas: int) -> frozenset[str]:
        """Who the Pods of a Deployment are, once there are so many, all of them Ready and none terminating."""
        return self.cluster.kubelets.wait_ready(self.name, f"app={name}", replicas)

    def roll(self, name: str) -> frozenset[str]:
        """Replace all Pods of a Deployment, one by one, and return who they are in the end."""
        strategy = {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
        template = {"metadata": {"annotations": {"changed": str(time.monotonic())}}}
        item = self._api.patch(self._deployment(name), {"spec": {"strategy": strategy, "template": template}})
        generation, replicas = item["metadata"]["generation"], item["spec"]["replicas"]
        deadline = time.monotonic() + _PATIENCE
        while True:
            status = self._api.get("Deployment", name, self.name).get("status", {})
            counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "availableReplicas")]
            if status.get("observedGeneration", 0) >= generation and counts == [replicas] * 3:
                return self.ends(name, replicas)
            if time.monotonic() > deadline:
                raise TimeoutError(f"Deployment {name} is not renewed: {status}")
            time.sleep(0.05)

    def serve(self, name: str, ports: list[Object], **spec: Any) -> Object:
        """Create a Service of both families, by default for the Pods of the Deployment of that name."""
        whole = {"ipFamilyPolicy": "RequireDualStack", "selector": {"app": name}, "ports": ports}
        return self._api.create(self._service(name) | {"spec": whole | spec})

    def change(self, name: str, **spec: Any) -> Object:
        """Change fields of a Service's spec."""
        return self._api.patch(self._service(name), {"spec": spec})

    def give_vip(self, name: str, vip: Pair) -> None:
        """Give a Service of type LoadBalancer its addresses, as a cloud does."""
        ingress = [{"ip": address, "ipMode": "VIP"} for address in vip]
        self._api.patch_status(self._service(name), {"loadBalancer": {"ingress": ingress}})

    def delete(self, name: str) -> None:
        """Delete a Service."""
        self._api.delete(self._service(name))

    def empty(self) -> None:
        """Delete all Deployments, and wait until their Pods are gone."""
        for one in self._api.list("Deployment", self.name)["items"]:
            self._api.delete(self._deployment(one["metadata"]["name"]))
        self.cluster.kubelets.wait_ready(self.name, "", 0)

    def _deployment(self, name: str) -> Object:
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": self.name}}

    def _service(self, name: str) -> Object:
        return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": self.name}}


def cluster_ips(service: Object) -> Pair:
    """The ClusterIPs of a Service of both families."""
    return Pair(*service["spec"]["clusterIPs"])


def node_port(service: Object) -> int:
    """The node port of a Service's first port."""
    port: int = service["spec"]["ports"][0]["nodePort"]
    return port
