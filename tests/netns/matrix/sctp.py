"""SCTP without SCTP sockets: real INIT chunks from raw sockets, and INIT ACKs from those they reach.

Kernels without SCTP sockets track and translate SCTP all the same. A client sends an INIT with a correct checksum
(RFC 9260, sections 3.3.2 and 6.8); a server answers with an INIT ACK whose state cookie holds its name and the client's
address as the server saw it. That is all of the association that load balancing decides on.
"""

import contextlib
import errno
import itertools
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from netns.namespaces import Namespace
from netns.probe import DEFAULT_TIMEOUT, Answer, Dropped, Flow, Outcome, Rejected, Unreachable

_INIT, _INIT_ACK, _COOKIE = 1, 2, 7
_HEADER = struct.Struct("!HHI")  # source port, destination port, verification tag; the checksum follows
_CHUNK = struct.Struct("!BBHIIHHI")  # type, flags, length, initiate tag, window, streams out and in, initial TSN
_PARAMETER = struct.Struct("!HH")  # type, length
_PKTINFO4 = struct.Struct("=i4s4s")  # struct in_pktinfo of ip(7): interface, local address, address of the header
_PKTINFO6 = struct.Struct("=16si")  # struct in6_pktinfo of ipv6(7): address, interface
_IP_PKTINFO, _IP_RECVERR, _IPV6_RECVERR, _MSG_ERRQUEUE = 8, 11, 25, 0x2000
_ERROR = struct.Struct("=IBBBBII")  # struct sock_extended_err of linux/errqueue.h
_PORT_UNREACHABLE = {(2, 3, 3), (3, 1, 4)}  # origin, type and code of ICMP (RFC 792) and ICMPv6 (RFC 4443)
_BUFFER = 1 << 20
_AT_ONCE = 150
_PORTS = itertools.cycle(range(20000, 60000))
"""Client ports, each used once before any is used again: an old entry of the connection tracking decides nothing."""


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901 the remainder of this byte
        table.append(value)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """The checksum of SCTP (RFC 9260, appendix A)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _packet(source_port: int, port: int, verification: int, kind: int, tag: int, cookie: bytes = b"") -> bytes:
    parameter = _PARAMETER.pack(_COOKIE, _PARAMETER.size + len(cookie)) + cookie if cookie else b""
    chunk = _CHUNK.pack(kind, 0, _CHUNK.size + len(parameter), tag, 65536, 1, 1, tag) + parameter
    chunk += bytes(-len(chunk) % 4)
    header = _HEADER.pack(source_port, port, verification)
    return header + struct.pack("<I", crc32c(header + bytes(4) + chunk)) + chunk


@dataclass(frozen=True, slots=True)
class _Received:
    """An SCTP packet with one chunk, as it arrived."""

    source: str
    source_port: int
    address: str
    port: int
    verification: int
    kind: int
    tag: int
    cookie: bytes


class _Socket:
    """A raw SCTP socket of one family in a namespace."""

    def __init__(self, namespace: Namespace, family: socket.AddressFamily) -> None:
        self.family = family
        with namespace.enter():
            self.sock = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_SCTP)
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        if family == socket.AF_INET6:
            self.sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)

    def report_errors(self) -> None:
        """Keep ICMP errors for :meth:`errors`."""
        four = self.family == socket.AF_INET
        level, option = (socket.IPPROTO_IP, _IP_RECVERR) if four else (socket.IPPROTO_IPV6, _IPV6_RECVERR)
        self.sock.setsockopt(level, option, 1)

    def send(self, source: str | None, address: str, packet: bytes) -> None:
        """Send a packet; one that is stopped on its way out is no error.

        Raises:
            OSError: there is no route.
        """
        ancillary = []
        if source is not None:
            raw = socket.inet_pton(self.family, source)
            if self.family == socket.AF_INET:
                ancillary = [(socket.IPPROTO_IP, _IP_PKTINFO, _PKTINFO4.pack(0, raw, bytes(4)))]
            else:
                ancillary = [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, _PKTINFO6.pack(raw, 0))]
        for _ in range(5):
            # An ICMP error for an earlier packet is told to whoever sends next, and that packet is not sent.
            self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            try:
                self.sock.sendmsg([packet], ancillary, 0, (address, 0))
            except PermissionError:
                return
            except OSError as error:
                failure = error
            else:
                return
        raise failure

    def packets(self) -> Iterator[_Received]:
        """What has arrived."""
        while True:
            try:
                data, ancillary, _, peer = self.sock.recvmsg(4096, 256)
            except BlockingIOError:
                return
            except OSError:
                continue  # an ICMP error, which errors() tells in full
            if self.family == socket.AF_INET:
                address, data = socket.inet_ntoa(data[16:20]), data[(data[0] & 15) * 4 :]
            else:
                raw = next(value for _, kind, value in ancillary if kind == socket.IPV6_PKTINFO)
                address = socket.inet_ntop(socket.AF_INET6, raw[:16])
            if len(data) < _HEADER.size + 4 + _CHUNK.size:
                continue
            source_port, port, verification = _HEADER.unpack_from(data)
            kind, _, length, tag, *_ = _CHUNK.unpack_from(data, 12)
            yield _Received(
                peer[0], source_port, address, port, verification, kind, tag, data[12 + _CHUNK.size + 4 : 12 + length]
            )

    def errors(self) -> Iterator[tuple[int, Outcome]]:
        """The client ports whose packets were answered by an ICMP error, and what it said."""
        while True:
            try:
                data, ancillary, _, _ = self.sock.recvmsg(512, 512, _MSG_ERRQUEUE)
            except BlockingIOError:
                return
            for _, kind, value in ancillary:
                if kind in {_IP_RECVERR, _IPV6_RECVERR} and len(data) >= 2:
                    _, origin, type_, code, *_ = _ERROR.unpack_from(value)
                    start, length = (16 + 4, 4) if self.family == socket.AF_INET else (16 + 8, 16)
                    by = socket.inet_ntop(self.family, value[start : start + length])
                    known = (origin, type_, code) in _PORT_UNREACHABLE
                    yield int.from_bytes(data[:2], "big"), Rejected(by) if known else Unreachable()


class SctpServers:
    """The thread that answers INITs for everybody. Close it when done."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._served: dict[tuple[int, str, int], str] = {}
        self._sockets: dict[tuple[int, socket.AddressFamily], _Socket] = {}
        self._stop_read, self._stop_write = os.pipe()
        self._selector.register(self._stop_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="SCTP servers", daemon=True)
        self._thread.start()

    def serve(self, namespace: Namespace, name: str, addresses: Sequence[str], port: int) -> None:
        """Answer on a port of some addresses of a namespace, as ``name``."""
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._served[namespace.fd, address, port] = name
            key = namespace.fd, family
            if key not in self._sockets:
                self._sockets[key] = one = _Socket(namespace, family)
                self._selector.register(one.sock, selectors.EVENT_READ, (namespace.fd, one))

    def close(self) -> None:
        """End the thread. Does nothing the second time."""
        if not self._thread.is_alive():
            return
        os.write(self._stop_write, b"x")
        self._thread.join(5)
        self._selector.close()
        for one in self._sockets.values():
            one.sock.close()
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                self._answer(*key.data)

    def _answer(self, namespace: int, one: _Socket) -> None:
        for packet in one.packets():
            name = self._served.get((namespace, packet.address, packet.port))
            if packet.kind == _INIT and name is not None:
                cookie = f"{name} {packet.source} {packet.source_port}".encode()
                answer = _packet(packet.port, packet.source_port, packet.tag, _INIT_ACK, packet.tag ^ 1, cookie)
                with contextlib.suppress(OSError):
                    one.send(packet.address, packet.source, answer)


def probe_sctp(flows: Sequence[Flow], timeout: float = DEFAULT_TIMEOUT, at_once: int = _AT_ONCE) -> list[Outcome]:
    """Send an INIT for each flow, many at once, and return what became of each, in order.

    Args:
        flows: what to try; their protocol is not looked at.
        timeout: seconds each may take.
        at_once: how many are under way at a time.
    """
    outcomes: list[Outcome] = []
    for start in range(0, len(flows), at_once):
        outcomes += _probe_some(flows[start : start + at_once], timeout)
    return outcomes


def _probe_some(flows: Sequence[Flow], timeout: float) -> list[Outcome]:
    outcomes: list[Outcome | None] = [None] * len(flows)
    ports: dict[int, int] = {}
    sockets: dict[tuple[int, socket.AddressFamily], _Socket] = {}
    with contextlib.ExitStack() as cleanup, selectors.DefaultSelector() as selector:
        for flow in flows:
            family = socket.AF_INET6 if ":" in flow.address else socket.AF_INET
            if (flow.namespace.fd, family) not in sockets:
                sockets[flow.namespace.fd, family] = one = _Socket(flow.namespace, family)
                cleanup.callback(one.sock.close)
                one.report_errors()
                selector.register(one.sock, selectors.EVENT_READ, one)
        for index, flow in enumerate(flows):
            port = next(_PORTS)
            ports[port] = index
            family = socket.AF_INET6 if ":" in flow.address else socket.AF_INET
            tag = 0x10000 + port
            try:
                sockets[flow.namespace.fd, family].send(
                    flow.source, flow.address, _packet(port, flow.port, 0, _INIT, tag)
                )
            except OSError as error:
                if error.errno not in {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ECONNREFUSED}:
                    raise
        deadline = time.monotonic() + timeout
        while None in outcomes and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                _collect(key.data, ports, outcomes)
    return [outcome or Dropped() for outcome in outcomes]


def _collect(one: _Socket, ports: dict[int, int], outcomes: list[Outcome | None]) -> None:
    for port, outcome in one.errors():
        if port in ports:
            outcomes[ports[port]] = outcomes[ports[port]] or outcome
    for packet in one.packets():
        if packet.kind == _INIT_ACK and packet.port in ports and packet.verification == 0x10000 + packet.port:
            name, source, source_port = packet.cookie.rstrip(b"\0").decode().split()
            index = ports[packet.port]
            outcomes[index] = outcomes[index] or Answer(name, source, int(source_port), packet.address, packet.port)
