"""The proxies: each a process on a node's network namespace that follows the API server."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import yaml

from cluster.differential.ground import NODE
from cluster.differential.objects import MARKER_PORT
from cluster.differential.settings import Settings
from cluster.processes import Deadline, Keeper, Program
from netns.addresses import FAMILIES, Family, Pair
from netns.matrix.tracking import forget_connections
from netns.namespaces import CommandError, Namespace

TABLE = "kube-proxy"
_PATIENCE = 90.0


class Proxy(ABC):
    """A proxy on a node: started with some settings, again with others, and ended.

    Args:
        namespace: the node's network namespace.
        keeper: starts it.
        kubeconfig: how it gets to the API server.
        folder: for its files and its log.
    """

    name: str

    def __init__(self, namespace: Namespace, keeper: Keeper, kubeconfig: Path, folder: Path) -> None:
        self.namespace = namespace
        self._kubeconfig = kubeconfig
        self._folder = folder
        folder.mkdir()
        self._program = Program(self.name, keeper, namespace, [], folder)
        self._running: tuple[Settings, Sequence[str]] | None = None

    def run(self, settings: Settings, *more: str) -> None:
        """Have it run with some settings; if it does so already, it goes on.

        Args:
            settings: the configuration.
            more: more flags.
        """
        if self._running == (settings, more) and self._program.running:
            return
        self.stop()
        self._program.argv = self._command(settings, more)
        self._program.start()
        self._running = settings, more

    def stop(self) -> None:
        """End it; the rules stay."""
        self._program.stop()
        self._running = None

    def await_marker(self, addresses: Pair) -> None:
        """Wait until the kernel holds a Service with an endpoint, which was made last, in both families.

        Services and EndpointSlices each arrive in order: with the marker, all that was made before it is there.

        Raises:
            ProgramError: it took too long, or the proxy ended.
        """
        deadline = Deadline(_PATIENCE, f"{self.name} does not serve {' and '.join(addresses)}", self._program)
        for family in FAMILIES:
            while not self._has(family, addresses.of(family)):
                deadline.pause()

    def forget(self) -> None:
        """Empty the connection tracking of the node: what was decided before does not count."""
        forget_connections(self.namespace)

    def rules(self, family: Family, words: Sequence[str]) -> str:
        """The chains whose names have one of the words, and the elements that have one, as nft lists them."""
        table = "ip" if family == 4 else "ip6"
        try:
            listing = self.namespace.run("nft", "list", "table", table, TABLE)
        except CommandError as error:
            return str(error)
        blocks = listing.split("\n\t}\n")
        lines: list[str] = []
        for block in blocks:
            head, *body = [line.strip() for line in block.strip().splitlines() if line.strip()] or [""]
            if head.startswith("table"):
                head, *body = body or [""]
            if any(word in head for word in words):
                lines += [head, *(f"    {line}" for line in body), "}"]
                continue
            lines += [f"{head} … {line}" for line in body if any(word in line for word in words)]
        return "\n".join(lines) or "nothing"

    def log(self) -> str:
        """The last lines of its log."""
        return self._program.tail()

    @abstractmethod
    def _command(self, settings: Settings, more: Sequence[str]) -> list[str | Path]: ...

    def _has(self, family: Family, address: str) -> bool:
        table, key = ("ip" if family == 4 else "ip6"), f"{{ {address} . tcp . {MARKER_PORT} }}"
        try:
            self.namespace.run("nft", "get", "element", table, TABLE, "service-ips", key)
        except CommandError:
            return False
        return True


class KubeProxy(Proxy):
    """The real one, in its nftables mode.

    Args:
        program: its binary.
        namespace, keeper, kubeconfig, folder: see :class:`Proxy`.
    """

    name = "kube-proxy"

    def __init__(self, program: Path, namespace: Namespace, keeper: Keeper, kubeconfig: Path, folder: Path) -> None:
        super().__init__(namespace, keeper, kubeconfig, folder)
        self._binary = program

    def _command(self, settings: Settings, more: Sequence[str]) -> list[str | Path]:
        config = self._folder / "config.yaml"
        config.write_text(yaml.safe_dump(settings.kube_proxy(str(self._kubeconfig), NODE)))
        return [self._binary, f"--config={config}", "-v=1", *more]


class NodeProxy(Proxy):
    """The one of this project."""

    name = "nodeproxy"

    def _command(self, settings: Settings, more: Sequence[str]) -> list[str | Path]:
        return [
            sys.executable,
            "-m",
            "nodeproxy",
            "run",
            f"--kubeconfig={self._kubeconfig}",
            f"--hostname-override={NODE}",
            "--min-sync-period=100ms",
            *settings.flags(),
            *more,
        ]
