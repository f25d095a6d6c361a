"""Kubelets and a scheduler that run nothing: Pods become Ready at once, at the address of a namespace that answers."""

import contextlib
import http.client
import threading
import time
from collections import deque
from types import TracebackType
from typing import Any, Self

import msgspec

from cluster.api import Api, ApiError, Object
from netns.addresses import FAMILIES
from netns.world import Pod, World

HOSTNAME = "kubernetes.io/hostname"
"""Key of the nodeSelector that says which node a Pod is to go to; without it, the one with the fewest."""
_ROUND = 0.1
_LINGER = 0.3
_PATIENCE = 30.0


class KubeletError(RuntimeError):
    """Pods did not become what they should in time; the message says what they are."""


class Kubelets:
    """Gives Pods of the cluster to hosts of a world, and takes them away again. Use it in a ``with`` statement.

    An address is used again as late as possible, so that a rule that still leads to a Pod that is gone shows.

    Args:
        api: the API server.
        world: the network. Its nodes are Nodes; its pods are hosts for Pods, but for the first of each node, which
            is a bystander.

    Attributes:
        errors: what went wrong, API servers that could not be reached left out.
    """

    def __init__(self, api: Api, world: World) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._free = {name: deque(list(node.pods.values())[1:]) for name, node in world.nodes.items()}
        self._hosts: dict[str, Pod] = {}  # by the Pod's uid
        self._ending: dict[str, float] = {}
        self._held = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelets", daemon=True)
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_PATIENCE)

    @contextlib.contextmanager
    def ends_held_up(self) -> Any:
        """Pods that are deleted go on terminating while this lasts."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def wait_ready(self, namespace: str, selector: str, count: int) -> frozenset[str]:
        """Wait until there are ``count`` Pods, all Ready and none of them terminating.

        Returns:
            The names of the hosts that they are on.

        Raises:
            KubeletError: there are not, after half a minute.
        """
        deadline = time.monotonic() + _PATIENCE
        while True:
            pods = self._api.list("Pod", namespace, labelSelector=selector)["items"]
            if len(pods) == count and all(map(_is_ready, pods)):
                with self._lock:
                    return frozenset(self._hosts[pod["metadata"]["uid"]].name for pod in pods)
            if time.monotonic() > deadline:
                seen = [(pod["metadata"], pod.get("status")) for pod in pods]
                raise KubeletError(f"{selector}: not {count} Pods that are ready, but {seen}; {self.errors[-3:]}")
            time.sleep(0.05)

    def pods(self, namespace: str, selector: str) -> dict[str, Object]:
        """The Pods that are on a host, by its name."""
        found = self._api.list("Pod", namespace, labelSelector=selector)["items"]
        with self._lock:
            hosts = {pod["metadata"]["uid"]: self._hosts.get(pod["metadata"]["uid"]) for pod in found}
        return {host.name: pod for pod in found if (host := hosts[pod["metadata"]["uid"]])}

    def set_ready(self, pod: Object, *, ready: bool) -> None:
        """Have a Pod become Ready, or not Ready."""
        self._api.patch_status(_named(pod), {"conditions": _conditions(ready=ready)})

    def _run(self) -> None:
        while not self._stop.wait(_ROUND):
            try:
                self._round()
            except (OSError, http.client.HTTPException):
                continue  # the API server is away
            except Exception as error:
                self.errors.append(repr(error))

    def _round(self) -> None:
        pods = self._api.list("Pod", resourceVersion="0")["items"]
        there = {pod["metadata"]["uid"] for pod in pods}
        with self._lock:
            for uid in self._hosts.keys() - there:
                host = self._hosts.pop(uid)
                self._free[host.node.name].append(host)
                self._ending.pop(uid, None)
        for pod in pods:
            with contextlib.suppress(ApiError):  # it changed meanwhile, or is gone: the next round sees
                self._advance(pod)

    def _advance(self, pod: Object) -> None:
        metadata, node = pod["metadata"], pod["spec"].get("nodeName")
        if "deletionTimestamp" in metadata:
            began = self._ending.setdefault(metadata["uid"], time.monotonic())
            if not self._held and time.monotonic() - began >= _LINGER:
                self._api.delete(_named(pod), grace=0)
        elif node is None:
            self._bind(pod)
        elif node in self._free and "podIPs" not in pod["status"]:
            self._start(pod, node)

    def _bind(self, pod: Object) -> None:
        used = {name: len(free) for name, free in self._free.items()}
        node = pod["spec"].get("nodeSelector", {}).get(HOSTNAME) or max(used, key=lambda name: used[name])
        metadata = pod["metadata"]
        path = self._api.path("Pod", metadata["name"], metadata["namespace"]) + "/binding"
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        code, body = self._api.request("POST", path, msgspec.json.encode(binding), {"Content-Type": "application/json"})
        if code == 201:
            self._start(pod, node)
        elif code != 409:
            raise ApiError(f"POST {path}", code, body)

    def _start(self, pod: Object, node: str) -> None:
        uid = pod["metadata"]["uid"]
        with self._lock:
            host = self._hosts.get(uid)
            if host is None:
                if not self._free[node]:
                    self.errors.append(f"{node} is full")
                    return
                host = self._hosts[uid] = self._free[node].popleft()
        addresses = [host.address(family) for family in FAMILIES]
        ready = pod["metadata"].get("annotations", {}).get("ready") != "no"
        status = {
            "phase": "Running",
            "podIP": addresses[0],
            "podIPs": [{"ip": address} for address in addresses],
            "hostIP": host.node.address(4),
            "conditions": _conditions(ready=ready),
        }
        self._api.patch_status(_named(pod), status)


def _named(pod: Object) -> Object:
    names = {key: pod["metadata"][key] for key in ("name", "namespace")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": names}


def _conditions(*, ready: bool) -> list[Object]:
    status = "True" if ready else "False"
    return [{"type": kind, "status": status} for kind in ("Ready", "ContainersReady")]


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"] and "podIPs" in pod["status"]
