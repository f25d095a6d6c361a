"""A real control plane, a world of nodes that hang on it, and what else a cluster needs."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from cluster.api import Object
from cluster.control_plane import ControlPlane
from cluster.nodes.kubelets import Kubelets
from cluster.processes import Keeper, Program
from cluster.programs import Programs
from netns.agent import CLUSTER_CIDR
from netns.manifests import Manifest, node
from netns.recorded import TARGET
from netns.world import Node, World

LINK = "control"
"""The interface of each node that leads to the API server."""


class LiveAgent:
    """``nodeproxy run`` on a node, following the API server.

    Args:
        node: where it runs.
        kubeconfig: which API server, and as whom.
        keeper: starts it.
        folder: for its log.
        flags: command line, besides ``--kubeconfig`` and ``--hostname-override``.
    """

    def __init__(
        self, node: Node, kubeconfig: Path, keeper: Keeper, folder: Path, flags: Sequence[str] = (CLUSTER_CIDR,)
    ) -> None:
        self.node = node
        argv = (
            sys.executable,
            "-m",
            "nodeproxy",
            "run",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={node.name}",
            "--min-sync-period=0s",
            *flags,
        )
        self.program = Program(f"nodeproxy-{node.name}", keeper, node.namespace, argv, folder)

    def __enter__(self) -> Self:
        self.program.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.program.stop()

    def logged(self, *words: str) -> list[str]:
        """The log lines so far that contain all of the words."""
        with contextlib.suppress(FileNotFoundError):
            return [line for line in self.program.log.read_text().splitlines() if all(word in line for word in words)]
        return []

    def wait_logged(self, *words: str, count: int = 1, timeout: float = 20) -> list[str]:
        """Wait for ``count`` log lines that contain all of the words.

        Raises:
            AssertionError: they did not come in time; with the end of the log.
        """
        deadline = time.monotonic() + timeout
        while len(lines := self.logged(*words)) < count:
            assert time.monotonic() < deadline, f"no line with {words} within {timeout} s:\n{self.program.tail()}"
            self.program.check()
            time.sleep(0.05)
        return lines


class LiveCluster:
    """A control plane with Nodes, each of them a node of a world with pods that answer. For ``with``.

    Args:
        programs: of the control plane.
        nodes: how many nodes.
        pods: how many pods each has; the first is a bystander.

    Attributes:
        plane: the control plane.
        world: the network.
        kubelets: have Pods become Ready.
        keeper: starts programs.
    """

    plane: ControlPlane
    world: World
    kubelets: Kubelets
    keeper: Keeper

    def __init__(self, programs: Programs, nodes: int = 3, pods: int = 6) -> None:
        self._programs = programs
        self._size = nodes, pods
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.plane = stack.enter_context(ControlPlane(self._programs))
            self.world = stack.enter_context(World(*self._size))
            self.world.serve_pods(TARGET)
            self.keeper = Keeper()
            stack.callback(self.keeper.close)
            for one in self.world.nodes.values():
                self.plane.attach(one, name=LINK)
                self.plane.api.create(node(one))
            self.kubelets = stack.enter_context(Kubelets(self.plane.api, self.world))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def agent(self, name: str, *flags: str) -> LiveAgent:
        """An agent for a node."""
        kubeconfig = self.plane.kubeconfig_for()
        given = flags or (CLUSTER_CIDR,)
        return LiveAgent(self.world.node(name), kubeconfig, self.keeper, self.plane.folder, given)

    @contextlib.contextmanager
    def agents(self) -> Iterator[dict[str, LiveAgent]]:
        """An agent on each node, each of which has written its rules."""
        with contextlib.ExitStack() as stack:
            found = {name: stack.enter_context(self.agent(name)) for name in self.world.nodes}
            for agent in found.values():
                agent.wait_logged("synced", count=2)
            yield found


@contextlib.contextmanager
def cut_off(plane: ControlPlane) -> Iterator[None]:
    """Nobody reaches the API server while this lasts: what is sent to it is lost."""
    _set_links(plane, "down")
    try:
        yield
    finally:
        _set_links(plane, "up")


def _set_links(plane: ControlPlane, state: str) -> None:
    # At the bridge's end: a node whose own end is down would be told at once that there is no way.
    links = plane.namespace.run("ip", "-o", "link", "show", "type", "veth").splitlines()
    for name in (line.split()[1].partition("@")[0] for line in links):
        plane.namespace.run("ip", "link", "set", name, state)


def deployment(
    name: str, namespace: str, replicas: int, *, labels: Manifest | None = None, on: str | None = None, **template: str
) -> Object:
    """A Deployment whose Pods have the label ``app`` with its name.

    Args:
        name: its name.
        namespace: its namespace.
        replicas: how many Pods.
        labels: more labels of the Pods.
        on: the node that they are to go to.
        template: annotations of the Pods.
    """
    spec: Object = {"containers": [{"name": "main", "image": "none"}], "terminationGracePeriodSeconds": 1}
    if on is not None:
        spec["nodeSelector"] = {"kubernetes.io/hostname": on}
    metadata = {"labels": {"app": name} | (labels or {}), "annotations": template}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": metadata, "spec": spec},
        },
    }
