"""The proxy under test, running as a process of its own on a node."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from netns import addresses as plan
from netns.addresses import FAMILIES
from netns.manifests import Manifest, ManifestFolder, cluster, port, service
from netns.namespaces import CommandError
from netns.world import Node

TABLE = "kube-proxy"
SOURCES = Path(__file__).resolve().parents[2] / "operator"
_FREELY = Path(__file__).with_name("freely.py")
CLUSTER_CIDR = f"--cluster-cidr={plan.CLUSTER.v4},{plan.CLUSTER.v6}"
_MARKER_FIRST, _MARKER_LAST = 201, 250


class AgentError(RuntimeError):
    """The agent ended, or did not do in time what it should; the message holds its last log lines."""


class Agent:
    """``nodeproxy run`` on a node, reading a folder of manifests. Use it in a ``with`` statement.

    A folder of its own starts with the Nodes and the ServiceCIDR. ClusterIPs 201 to 250 are the agent's own: after
    each change a Service with the next of them, and no endpoints, is written last, and once the kernel knows it, it
    knows all that came before.

    Args:
        node: where it runs.
        flags: command line, besides ``--manifests``, ``--hostname-override`` and ``--min-sync-period``.
        folder: manifests that exist already; None: a folder of its own.
        freely: whether it takes libnftables for one that deletes freely; None: as it is.

    Attributes:
        folder: the manifests.
        log: every line it wrote so far, of all its runs.
    """

    def __init__(
        self,
        node: Node,
        flags: Sequence[str] = (CLUSTER_CIDR,),
        folder: ManifestFolder | None = None,
        freely: bool | None = None,
    ) -> None:
        self.node = node
        self._program = ("-m", "nodeproxy") if freely is None else (str(_FREELY), "yes" if freely else "no")
        self.flags = tuple(flags)
        self.log: list[str] = []
        self._owns_folder = folder is None
        self.folder = folder or ManifestFolder()
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []
        self._marker = _MARKER_FIRST
        if self._owns_folder:
            self.folder.write("cluster", cluster(node.world))

    def __enter__(self) -> Self:
        try:
            self.start()
            self.settle()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            AgentError: it does not run.
        """
        if self._process is None:
            raise self._error("it does not run")
        return self._process.pid

    def start(self) -> None:
        """Start it; returns at once."""
        self._process = self.node.namespace.start(
            sys.executable,
            *self._program,
            "run",
            f"--manifests={self.folder.path}",
            f"--hostname-override={self.node.name}",
            "--min-sync-period=0s",
            *self.flags,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        reader = threading.Thread(target=self._read, args=(self._process,), name="agent log", daemon=True)
        reader.start()
        self._readers.append(reader)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it by SIGTERM and return its exit code.

        Raises:
            AgentError: it did not end within 10 s.
        """
        return self._end(signal.SIGTERM)

    def close(self) -> None:
        """End it if it runs, and remove its folder. The rules stay."""
        with contextlib.ExitStack() as stack:
            if self._owns_folder:
                stack.callback(self.folder.close)
            if self._process is not None:
                self._end(signal.SIGKILL)

    def apply(self, **files: Sequence[Manifest]) -> None:
        """Write files of objects, and wait until the kernel holds them. An empty file is removed."""
        for name, objects in files.items():
            if objects:
                self.folder.write(name, objects)
            else:
                self.folder.delete(name)
        self.settle()

    def settle(self, timeout: float = 10) -> None:
        """Wait until the kernel holds what the folder held when this was called.

        Raises:
            AgentError: it took longer than ``timeout`` seconds, or the agent ended.
        """
        self._marker = self._marker + 1 if self._marker < _MARKER_LAST else _MARKER_FIRST
        last = service("marker", self._marker, [port(9)], namespace="zz-harness")
        self.folder.write("zz-marker", [last])
        deadline = time.monotonic() + timeout
        missing = list(FAMILIES)
        while missing:
            family = missing[0]
            marker = plan.host(plan.SERVICES, self._marker).of(family)
            if self.has_element(family, "cluster-ips", marker) and self.has_element(
                family, "no-endpoint-services", f"{marker} . tcp . 9"
            ):
                missing.pop(0)
                continue
            if self._process is None or self._process.poll() is not None:
                raise self._error("it ended")
            if time.monotonic() > deadline:
                raise self._error(f"IPv{family} is not in the kernel after {timeout} s")
            time.sleep(0.01)

    @staticmethod
    def is_marker(text: str) -> bool:
        """Whether a line of ``nft monitor`` is about nothing but a marker (see :meth:`settle`)."""
        numbers = range(_MARKER_FIRST, _MARKER_LAST + 1)
        addresses = {address for number in numbers for address in plan.host(plan.SERVICES, number)}
        return any(word in addresses for word in text.split())

    def has_element(self, family: int, name: str, key: str) -> bool:
        """Whether a set or map of the table has an element now; False as well if there is no such set."""
        table = "ip" if family == 4 else "ip6"
        with contextlib.suppress(CommandError):
            self.node.namespace.run("nft", "get", "element", table, TABLE, name, f"{{ {key} }}")
            return True
        return False

    def listing(self, family: int, kind: str, name: str) -> str:
        """``nft list KIND`` of an object of the table.

        Raises:
            CommandError: it is not there.
        """
        return self.node.namespace.run("nft", "list", kind, "ip" if family == 4 else "ip6", TABLE, name)

    def chains(self, family: int) -> list[str]:
        """The names of the table's chains."""
        table = "ip" if family == 4 else "ip6"
        text = self.node.namespace.run("nft", "list", "chains", table)
        lines = (line.split() for line in text.splitlines())
        return [words[1] for words in lines if words[:1] == ["chain"]]

    def command(self, *argv: str, timeout: float = 30) -> str:
        """Run another ``nodeproxy`` command on the node and return what it printed.

        Raises:
            CommandError: its exit code was not 0.
        """
        return self.node.namespace.run(sys.executable, "-m", "nodeproxy", *argv, timeout=timeout)

    def logged(self, *words: str) -> list[str]:
        """The log lines that contain all of the words."""
        return [line for line in self.log if all(word in line for word in words)]

    def wait_logged(self, *words: str, count: int = 1, timeout: float = 5) -> list[str]:
        """Wait for ``count`` log lines that contain all of the words.

        Raises:
            AgentError: they did not come within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while len(lines := self.logged(*words)) < count:
            if time.monotonic() > deadline:
                raise self._error(f"no log line with {words} within {timeout} s")
            time.sleep(0.01)
        return lines

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            raise self._error("it does not run")
        process.send_signal(number)
        try:
            code = process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)
            raise self._error(f"it did not end by {number.name}") from None
        finally:
            for reader in self._readers:
                reader.join(5)
            self._readers.clear()
            if process.stderr is not None:
                process.stderr.close()
        return code

    def _read(self, process: subprocess.Popen[str]) -> None:
        if process.stderr is None:
            return
        with contextlib.suppress(ValueError):  # closed under our hands
            self.log.extend(iter(process.stderr.readline, ""))

    def _error(self, what: str) -> AgentError:
        tail = "".join(self.log[-30:])
        return AgentError(
            f"nodeproxy on {self.node.name} {' '.join(self.flags)}: {what}; its log ends:{os.linesep}{tail}"
        )
