"""A folder of manifests, and the program as a process."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nodeproxy.cli import main as cli

MANIFESTS = [
    {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-a"},
        "status": {"addresses": [{"type": "InternalIP", "address": a} for a in ("192.0.2.1", "2001:db8::1")]},
    },
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "type": "NodePort",
            "clusterIP": "10.96.0.10",
            "clusterIPs": ["10.96.0.10", "fd00:96::10"],
            "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
            "sessionAffinity": "ClientIP",
        },
    },
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "four", "namespace": "shop"},
        "spec": {"clusterIP": "10.96.0.11", "ports": [{"port": 80}]},
    },
    *(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{of}-{kind}".lower(),
                "namespace": "shop",
                "labels": {"kubernetes.io/service-name": of},
            },
            "addressType": kind,
            "ports": [{"name": port, "port": 8080}],
            "endpoints": [{"addresses": [address]} for address in addresses],
        }
        for of, port, kind, addresses in (
            ("web", "http", "IPv4", ("10.244.0.1", "10.244.0.2")),
            ("web", "http", "IPv6", ("fd00:244::1", "fd00:244::2")),
            ("four", "", "IPv4", ("10.244.0.1", "10.244.0.2", "10.244.0.3")),
        )
    ),
]


def words(command: str, folder: Path, *more: str) -> list[str]:
    return [command, f"--manifests={folder}", "--hostname-override=node-a", *more]


@contextmanager
def start(*arguments: str, stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """The program as a process that runs meanwhile; ended in any case."""
    with subprocess.Popen(
        [sys.executable, "-m", "nodeproxy", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def call(*arguments: str, prefix: Sequence[str] = (), modules: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program as a process, in the namespace that the thread is in; ``modules`` come before all others."""
    return subprocess.run(
        [*prefix, sys.executable, "-m", "nodeproxy", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=_environment(modules),
    )


def _environment(modules: Path | None = None) -> dict[str, str]:
    # Output is buffered as it is for a user, whatever the test run's own is.
    path = ":".join(str(folder) for folder in (modules, Path(cli.__file__).parents[2]) if folder)
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": ""}
