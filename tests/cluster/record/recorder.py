"""Runs a kube-proxy on node-a of a test world beside a real API server, and stores what it wrote."""

import contextlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from cluster.api import MERGE_PATCH
from cluster.control_plane import ControlPlane
from cluster.record.kube_proxy import NFT_FAMILIES, kube_proxy
from cluster.record.objects import objects, surroundings
from netns import addresses as plan
from netns.addresses import FAMILIES
from netns.agent import TABLE
from netns.manifests import NAMESPACE, Manifest
from netns.probe import Answer, Flow, probe
from netns.recorded import CLIENTS, TARGET, clear
from netns.takeover_traffic import PROTOCOLS, some_addresses
from netns.world import Node, World

_STICKY = (93, 45)  # of cluster.record.objects: those that the client may use
_KINDS = {
    "Node": "v1",
    "ServiceCIDR": "networking.k8s.io/v1",
    "Service": "v1",
    "EndpointSlice": "discovery.k8s.io/v1",
}
_VOLATILE = ("managedFields", "resourceVersion", "generation", "uid", "ownerReferences", "annotations", "finalizers")


class RecordError(RuntimeError):
    """Nothing could be recorded; the message says why."""


class Recorder:
    """A cluster with the objects of :mod:`cluster.record.objects`. Use it in a ``with`` statement.

    Args:
        folder: for logs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._plane = stack.enter_context(ControlPlane())
            self._world = stack.enter_context(World(nodes=2, pods=3))
            self._world.serve_pods(TARGET)
            self._plane.attach(self._node, name="control")
            load(self._plane, self._world)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def _node(self) -> Node:
        return self._world.node("node-a")

    def record(self, program: Path, out: Path) -> None:
        """Have a kube-proxy write its tables, and store them.

        Args:
            program: kube-proxy.
            out: folder for ``ip.nft``, ``ip6.nft`` and ``about.json``; made if missing.

        Raises:
            RecordError: its rules do not serve.
            cluster.processes.ProgramError: it ended, or wrote no rules in time.
        """
        namespace = self._node.namespace
        clear(namespace)
        with kube_proxy(program, self._plane.kubeconfig, self._node, self._folder):
            self._make_clients()
            tables = {family: namespace.run("nft", "list", "table", family, TABLE) for family in NFT_FAMILIES}
        about = {
            "kube-proxy": namespace.run(str(program), "--version").split()[-1],
            "nft": namespace.run("nft", "--version").split()[1],
            "Linux": Path("/proc/sys/kernel/osrelease").read_text().partition("-")[0].strip(),
        }
        out.mkdir(parents=True, exist_ok=True)
        for family, text in tables.items():
            (out / f"{family}.nft").write_text(text)
        (out / "about.json").write_text(json.dumps(about, indent=1) + "\n")

    def save_objects(self, file: Path) -> None:
        """Store the objects that every release is recorded with, as the API server has them."""
        documents = yaml.safe_dump_all(self._objects(), sort_keys=False, explicit_start=True, width=120)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(documents)

    def _objects(self) -> Iterable[Manifest]:
        """What the API server has, without what only it needs."""
        for kind, version in _KINDS.items():
            for found in self._plane.api.list(kind)["items"]:
                metadata = {name: value for name, value in found["metadata"].items() if name not in _VOLATILE}
                whole = {"apiVersion": version, "kind": kind, **found, "metadata": metadata}
                if kind == "Node":
                    whole["status"] = {"addresses": found["status"]["addresses"]}
                yield whole

    def _make_clients(self) -> None:
        flows = [
            Flow(self._world.client.namespace, to.of(family), 80, protocol, client.of(family))
            for to in [plan.host(plan.SERVICES, number) for number in _STICKY]
            for client in some_addresses(CLIENTS)
            for family in FAMILIES
            for protocol in PROTOCOLS
        ]
        missed = [outcome for outcome in probe(flows, 2.0) if not isinstance(outcome, Answer)]
        if missed:
            raise RecordError(f"{len(missed)} of {len(flows)} clients were not served: {missed[0]}")


def load(plane: ControlPlane, world: World) -> None:
    """Create the objects, with their status.

    Raises:
        cluster.api.ApiError: one was refused.
        RecordError: the API server hands out no addresses of the ServiceCIDR.
    """
    api = plane.api
    for one in surroundings(world):
        api.create(one)
        if "status" in one:
            api.patch_status(one, one["status"], content_type=MERGE_PATCH)
    _wait_for_ranges(plane)
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for one in objects(world):
        api.create(one)
        if "status" in one:
            api.patch_status(one, one["status"], content_type=MERGE_PATCH)


def _wait_for_ranges(plane: ControlPlane, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not all(map(_is_ready, plane.api.list("ServiceCIDR")["items"])):
        if time.monotonic() > deadline:
            raise RecordError(f"a ServiceCIDR is not ready after {timeout:.0f} s")
        time.sleep(0.1)


def _is_ready(item: dict[str, Any]) -> bool:
    conditions = item.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
