"""What a proxy's IPv4 table holds, whoever wrote it: the same looks for kube-proxy's layout and for ours."""

import errno
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Set
from typing import Self

from bench.errors import BenchError
from nodeproxy.kernel import netlink
from nodeproxy.kernel.netlink import DumpInterruptedError, NftSocket, attributes, text
from nodeproxy.kube.addresses import Family

TABLE = "kube-proxy"
POD_PORT = 8080
_FRONTENDS = "service-ips"  # the map that both lead packets to a Service's chain with
# linux/netfilter/nf_tables.h, nfnetlink.h
_GET_GENERATION = 16
_TABLE, _NAME, _ELEMENTS_TABLE, _ELEMENTS_SET = 1, 2, 1, 2
_ELEMENTS, _GENERATION = 3, 1
_KEY, _DATA, _VALUE = 1, 2, 1
_DUMP_TRIES = 20

# In a concatenation each part takes whole words: address, port, two bytes of padding.
ENDPOINT = re.compile(rb"\x0a([\x40-\x7f\x80-\xff]..)" + struct.pack(">H", POD_PORT) + rb"\0\0", re.DOTALL)
"""An endpoint of the made-up cluster (:mod:`bench.cluster`), in what an element of a map leads to."""


def endpoint(found: "re.Match[bytes]") -> str:
    """The address that :data:`ENDPOINT` found."""
    return socket.inet_ntoa(b"\x0a" + found[1])


class KernelTable:
    """Reads the table of the network namespace that the calling thread is in when this is made."""

    def __init__(self) -> None:
        self._reader = NftSocket(Family.IPV4)
        self._asker = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink.NETFILTER)
        self._asker.bind((0, 0))
        self._asker.settimeout(10.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._asker.close()
        self._reader.__exit__()

    def generation(self) -> int:
        """The number of the ruleset's generation: each transaction in the namespace makes another one."""
        body = struct.pack("=BBH", socket.AF_UNSPEC, 0, 0)
        kind = netlink.NFTABLES << 8 | _GET_GENERATION
        self._asker.send(struct.pack("=IHHII", 16 + len(body), kind, 0x1, 0, 0) + body)
        data = memoryview(self._asker.recv(1 << 12))
        found = attributes(data[20:])
        return netlink.number(found[_GENERATION])

    def frontends(self) -> int:
        """How many addresses and ports lead to a Service; 0 as well while there is no table."""
        try:
            return sum(1 for _ in self._elements(_FRONTENDS))
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return 0

    def frontend_addresses(self) -> set[str]:
        """The addresses that lead to a Service."""
        found = set()
        for element in self._elements(_FRONTENDS):
            parts = attributes(element)
            found.add(socket.inet_ntoa(attributes(parts[_KEY])[_VALUE][:4]))
        return found

    def endpoints(self) -> dict[str, int]:
        """The addresses of the made-up cluster's pods that elements of maps lead to, and how many elements do.

        Raises:
            BenchError: the table kept changing.
        """
        for _ in range(_DUMP_TRIES):
            try:
                return self._endpoints_once()
            except DumpInterruptedError:
                time.sleep(0.2)
        msg = "the table kept changing while it was read"
        raise BenchError(msg)

    def wait_loaded(self, addresses: Set[str], ended: Callable[[], bool], timeout: float) -> float:
        """Wait until all of the addresses lead to a Service.

        Only the number of the generation is asked for again and again; when it is another one, elements are counted.

        Args:
            addresses: the ClusterIPs.
            ended: whether there is nothing left to wait for.
            timeout: seconds.

        Returns:
            when it was noticed that they did, in perf_counter seconds: 20 ms late at most, on an idle machine.

        Raises:
            BenchError: it took longer, or ``ended``.
        """
        deadline = time.monotonic() + timeout
        before = -1
        while time.monotonic() < deadline:
            at, generation = time.perf_counter(), self.generation()
            if generation != before:
                before = generation
                try:
                    if self.frontends() >= len(addresses) and addresses <= self.frontend_addresses():
                        return at
                except DumpInterruptedError:
                    before = -1  # count again at once
                    continue
            if ended():
                msg = "it ended by itself"
                raise BenchError(msg)
            time.sleep(0.01)
        msg = f"{self.frontends()} of {len(addresses)} Services were in the kernel after {timeout:g} s"
        raise BenchError(msg)

    def _endpoints_once(self) -> dict[str, int]:
        sets = [text(attributes(found)[_NAME]) for found in self._reader.dump(netlink.GET_SET, {_TABLE: TABLE})]
        found: dict[str, int] = {}
        for name in sets:
            for element in self._elements(name):
                data = attributes(element).get(_DATA)
                for match in ENDPOINT.finditer(data) if data is not None else ():
                    address = endpoint(match)
                    found[address] = found.get(address, 0) + 1
        return found

    def _elements(self, name: str) -> Iterator[memoryview]:
        for message in self._reader.dump(netlink.GET_ELEMENT, {_ELEMENTS_TABLE: TABLE, _ELEMENTS_SET: name}):
            found = attributes(message).get(_ELEMENTS)
            if found is not None:
                for _, element in netlink.each_attribute(found):
                    yield element
