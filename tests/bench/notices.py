"""When endpoints came into force in a network namespace, by the kernel's own notices (``NFNLGRP_NFTABLES``).

A process of its own listens, so that whoever writes at the same time does not make it late:

usage: python -m bench.notices
"""

import errno
import queue
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from bench import own_process
from bench.errors import BenchError
from bench.kernel import ENDPOINT, endpoint
from netns.namespaces import Namespace

_SOL_NETLINK, _ADD_MEMBERSHIP, _NETFILTER, _NFTABLES_GROUP = 270, 1, 12, 7  # linux/netlink.h, nfnetlink.h
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h
_RECEIVE_BUFFER = 256 << 20  # a whole load may come before one is looked at
_NEW_ELEMENT, _NEW_GENERATION = 10 << 8 | 12, 10 << 8 | 15  # nf_tables.h, in netfilter's subsystem of nftables
_READY, _LOST = "ready", "lost"
_PATIENCE = 30.0


class Notices:
    """Records when each endpoint came into force, while the ``with`` statement lasts.

    Args:
        namespace: where the proxy works.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._seen: dict[str, float] = {}
        self._changed = threading.Condition()
        self._lost = False
        self._said: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> Self:
        self._process = self._namespace.start(*own_process("bench.notices"), stdout=subprocess.PIPE, stderr=sys.stderr)
        self._thread = threading.Thread(target=self._read, name="notices", daemon=True)
        self._thread.start()
        try:
            said = self._said.get(timeout=_PATIENCE)
        except queue.Empty:
            said = ""
        if said != _READY:
            self._stop()
            msg = "nobody listens to the kernel's notices"
            raise BenchError(msg)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def seen(self) -> dict[str, float]:
        """When each address first came into force, in perf_counter seconds.

        Raises:
            BenchError: the kernel could not keep up telling, so that some are missing.
        """
        with self._changed:
            if self._lost:
                msg = "notices of the kernel were lost"
                raise BenchError(msg)
            return dict(self._seen)

    def wait(self, address: str, timeout: float) -> float:
        """When an address came into force, as :meth:`seen`; waits for it.

        Raises:
            BenchError: it did not within ``timeout`` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: address in self._seen, timeout):
                msg = f"the endpoint {address} did not come into force within {timeout:g} s"
                raise BenchError(msg)
            return self._seen[address]

    def _read(self) -> None:
        for line in self._process.stdout or ():
            words = line.split()
            if words[0] == _READY:
                self._said.put(_READY)
                continue
            with self._changed:
                if words[0] == _LOST:
                    self._lost = True
                else:
                    at = float(words[0])
                    for address in words[1:]:
                        self._seen.setdefault(address, at)
                self._changed.notify_all()
        self._said.put("")  # it has ended

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait(10)
        self._thread.join(10)
        if self._process.stdout is not None:
            self._process.stdout.close()


def listen() -> Iterator[tuple[float, set[str]]]:
    """For each transaction that adds elements with endpoints: when it was told of, and the endpoints' addresses.

    The first comes at once and has none: from then on nothing is missed, but for notices that were lost (-1).
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER) as sock:
        sock.bind((0, 0))
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
        sock.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _NFTABLES_GROUP)
        yield time.perf_counter(), set()
        found: set[str] = set()
        while True:
            try:
                data = sock.recv(1 << 18)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                yield -1.0, set()
                continue
            at = time.perf_counter()
            for kind, content in _messages(data):
                if kind == _NEW_ELEMENT:
                    found.update(map(endpoint, ENDPOINT.finditer(content)))
                elif kind == _NEW_GENERATION and found:
                    yield at, found
                    found = set()


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and content of the netlink messages in a datagram."""
    offset = 0
    while offset + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, offset)
        if length < 16:
            return
        yield kind, data[offset + 16 : offset + length]
        offset += (length + 3) & ~3


def main() -> None:
    """Print a line for each transaction: when it was told of, and its endpoints."""
    for number, (at, addresses) in enumerate(listen()):
        if number == 0:
            print(_READY, flush=True)
        elif at < 0:
            print(_LOST, flush=True)
        else:
            print(f"{at:.6f}", *addresses, flush=True)


if __name__ == "__main__":
    main()
