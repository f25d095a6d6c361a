"""The proxies that are compared, each as people start it: kube-proxy in nftables mode, and ``nodeproxy run``."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench import cluster
from netns.namespaces import Namespace

Name = Literal["kube-proxy", "nodeproxy"]
NAMES: tuple[Name, ...] = ("kube-proxy", "nodeproxy")
NODE_ADDRESS = "192.0.2.1"  # that of the Node that bench.cluster makes up
JSON, PROTOBUF = "application/json", "application/vnd.kubernetes.protobuf"
_TAIL = 5


@dataclass(frozen=True, slots=True)
class Rival:
    """How to start a proxy.

    Attributes:
        name: which one.
        program: the binary of kube-proxy; nodeproxy is that of the running interpreter.
        content_type: what kube-proxy asks the API server for; nodeproxy always reads JSON.
    """

    name: Name
    program: Path | None = None
    content_type: str = PROTOBUF
    flags: Sequence[str] = field(default=())

    def words(self, kubeconfig: Path, folder: Path) -> list[str]:
        """Its command line.

        Args:
            kubeconfig: how it reaches the API server.
            folder: where its configuration may be written.
        """
        if self.name == "nodeproxy":
            program = Path(sys.executable).with_name("nodeproxy")
            words = [str(program), "run", "--kubeconfig", str(kubeconfig), "--hostname-override", cluster.NODE]
            return [*words, "--cluster-cidr", cluster.CLUSTER_CIDR, "--logging-format", "json", *self.flags]
        path = folder / "kube-proxy.json"  # JSON is YAML
        path.write_text(json.dumps(self._configuration(kubeconfig)))
        return [str(self.program), f"--config={path}", *self.flags]

    def _configuration(self, kubeconfig: Path) -> dict[str, Any]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": cluster.NODE,
            "clusterCIDR": cluster.CLUSTER_CIDR,
            "clientConnection": {"kubeconfig": str(kubeconfig), "contentType": self.content_type},
            # A network namespace can't set these; 0 leaves them as they are.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
        }


@dataclass(frozen=True, slots=True)
class Started:
    """A proxy that runs.

    Attributes:
        rival: which.
        process: it.
        began: when it was started, in perf_counter seconds.
        log: the file that it writes to.
    """

    rival: Rival
    process: "subprocess.Popen[str]"
    began: float
    log: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def ended(self) -> bool:
        """Whether it is no longer there."""
        return self.process.poll() is not None

    def last_words(self) -> str:
        """The end of its log."""
        return " / ".join(self.log.read_text(errors="replace").splitlines()[-_TAIL:])


@contextmanager
def started(rival: Rival, namespace: Namespace, kubeconfig: Path, folder: Path) -> Iterator[Started]:
    """Start a proxy in a network namespace, and end it."""
    words = rival.words(kubeconfig, folder)
    log = folder / f"{rival.name}.log"
    with log.open("w") as output:
        began = time.perf_counter()
        process = namespace.start(*words, stdout=output, stderr=output)
    found = Started(rival, process, began, log)
    try:
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
