"""``nodeproxy run`` as people start it, on a folder of JSON files."""

import json
import queue
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import cluster, memory
from bench.errors import BenchError

_SOL_NETLINK, _ADD_MEMBERSHIP, _NETFILTER, _NFTABLES_GROUP = 270, 1, 12, 7  # linux/netlink.h, nfnetlink.h
_NFTABLES = 10 << 8  # nfnetlink.h: NFNL_SUBSYS_NFTABLES
_NEW_RULE, _NEW_ELEMENT, _NEW_GENERATION = 6, 12, 15  # nf_tables.h
_PATIENCE = 120.0
_REST = 1.3  # seconds between edits: longer than the shortest time between syncs


def folder(services: int, edits: int = 10) -> dict[str, Any]:
    """Start on a folder that has a file for each Service (a List of it and its slice), then edit files one by one.

    Args:
        services: how many Services.
        edits: how many edits.
    """
    with tempfile.TemporaryDirectory(prefix="nodeproxy-bench-") as name:
        path = Path(name)
        (path / "node.json").write_bytes(cluster.node())
        (path / "service-cidr.json").write_bytes(cluster.service_cidr())
        for number in range(services):
            (path / f"{number:05}.json").write_bytes(cluster.bundle(number))
        time.sleep(0.2)  # else the files count as just being written
        began = time.perf_counter()
        with _running(path) as (process, lines):
            complete = _loaded(lines, services) - began
            figures: dict[str, Any] = {"start s": complete, "start peak KiB": memory.peak(process.pid)}
            with Commits() as commits:
                figures["edit s"] = [_edit(path, number, services, commits) for number in range(edits)]
            figures["peak KiB"] = memory.peak(process.pid)
    return figures


@contextmanager
def _running(path: Path) -> Iterator[tuple["subprocess.Popen[str]", "queue.Queue[tuple[float, str]]"]]:
    program = Path(sys.executable).with_name("nodeproxy")
    words = [str(program), "run", "--manifests", str(path), "--hostname-override", cluster.NODE]
    words += ["--cluster-cidr", cluster.CLUSTER_CIDR, "--logging-format", "json"]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    lines: queue.Queue[tuple[float, str]] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        yield process, lines
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        reader.join(10)


def _read(process: "subprocess.Popen[str]", lines: "queue.Queue[tuple[float, str]]") -> None:
    if process.stderr is not None:
        for line in process.stderr:
            lines.put((time.perf_counter(), line))
    lines.put((time.perf_counter(), ""))


def _loaded(lines: "queue.Queue[tuple[float, str]]", services: int) -> float:
    """When all Services were in the kernel."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            at, line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            msg = f"nodeproxy run was not up within {_PATIENCE:g} s"
            raise BenchError(msg) from None
        if not line:
            msg = "nodeproxy run ended by itself"
            raise BenchError(msg)
        try:
            said = json.loads(line)
        except ValueError:
            msg = f"nodeproxy run: {line.strip()}"
            raise BenchError(msg) from None
        if said["level"] == "error":
            msg = f"nodeproxy run: {line.strip()}"
            raise BenchError(msg)
        if said["event"] == "synced" and said["family"] == "IPv4":
            if said["services"] != services:
                msg = f"{said['services']} Services were loaded instead of {services}"
                raise BenchError(msg)
            return at


def _edit(path: Path, number: int, services: int, commits: "Commits") -> float:
    """Seconds from an edit of a file, made as editors do, to the commit that it leads to."""
    time.sleep(_REST)
    of = number * 7919 % services
    new = path / ".new"
    new.write_bytes(cluster.bundle(of, version=number + 1))
    commits.skip()
    began = time.perf_counter()
    new.replace(path / f"{of:05}.json")
    return commits.wait(10.0) - began


class Commits:
    """The kernel's notices of changed rules and new elements, in this network namespace."""

    def __enter__(self) -> "Commits":
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER)
        self._socket.bind((0, 0))
        self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _NFTABLES_GROUP)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def skip(self) -> None:
        """Forget what has come until now."""
        self._socket.settimeout(0)
        try:
            while True:
                self._socket.recv(1 << 16)
        except BlockingIOError:
            pass

    def wait(self, timeout: float) -> float:
        """Wait for a commit that puts something in force; what only removes does not count.

        Returns:
            when it was noticed, in perf_counter seconds.

        Raises:
            BenchError: none came within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        found = False
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                break
            at = time.perf_counter()
            for kind in _kinds(data):
                if found and kind == _NFTABLES | _NEW_GENERATION:
                    return at
                found |= kind in {_NFTABLES | _NEW_RULE, _NFTABLES | _NEW_ELEMENT}
        msg = f"the kernel's rules did not change within {timeout:g} s"
        raise BenchError(msg)


def _kinds(data: bytes) -> Iterator[int]:
    """The types of the netlink messages in a datagram."""
    while len(data) >= 16:
        length, kind = struct.unpack_from("=IH", data)
        if length < 16:
            return
        yield kind
        data = data[(length + 3) & ~3 :]
