"""Clients: open flows, and say what became of each.

Many flows run at once in one thread, so that a hundred drops cost one timeout.
"""

import contextlib
import errno
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from netns.namespaces import Namespace
from netns.servers import Protocol

DEFAULT_TIMEOUT = 0.3
"""Seconds after which a flow counts as dropped. Answers within one machine take less than a millisecond."""

_AT_ONCE = 200
_SOL = {socket.AF_INET: socket.IPPROTO_IP, socket.AF_INET6: socket.IPPROTO_IPV6}
_RECVERR = {socket.AF_INET: 11, socket.AF_INET6: 25}  # IP_RECVERR, IPV6_RECVERR of linux/in.h and linux/in6.h
_MSG_ERRQUEUE = 0x2000
_ORIGIN_ICMP = (2, 3)  # SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6 of linux/errqueue.h
_UNREACHABLE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES}


@dataclass(frozen=True, slots=True)
class Answer:
    """A server answered.

    Attributes:
        name: the server's name.
        source: the client's address as the server saw it.
        source_port: the client's port as the server saw it.
        client: the client's address as the client knows it.
        client_port: the client's port as the client knows it.
    """

    name: str
    source: str
    source_port: int = field(compare=False)
    client: str
    client_port: int = field(compare=False)

    @property
    def masqueraded(self) -> bool:
        """Whether the server saw another address or port than the client has."""
        return (self.source, self.source_port) != (self.client, self.client_port)


@dataclass(frozen=True, slots=True)
class Rejected:
    """An ICMP "port unreachable" came back: what ``reject`` sends. For UDP, also what a closed port sends.

    Attributes:
        by: the address it came from.
    """

    by: str = field(compare=False, default="")


@dataclass(frozen=True, slots=True)
class Refused:
    """A TCP reset came back: the address is somebody's, and nobody listens there."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """There is no route, here or on the way: no rule took the packet."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Nothing came back in time."""


Outcome = Answer | Rejected | Refused | Unreachable | Dropped


@dataclass(frozen=True, slots=True)
class Flow:
    """One connection (TCP) or request (UDP) to try.

    Attributes:
        namespace: where the client is.
        address: the destination.
        port: its port.
        protocol: TCP or UDP.
        source: the client's address; None: what routing chooses.
    """

    namespace: Namespace
    address: str
    port: int
    protocol: Protocol = "TCP"
    source: str | None = None


class _Attempt:
    """A flow under way."""

    def __init__(self, flow: Flow, timeout: float) -> None:
        self.flow = flow
        self.family = socket.AF_INET6 if ":" in flow.address else socket.AF_INET
        self.outcome: Outcome | None = None
        self.deadline = time.monotonic() + timeout
        self._data = b""
        self._stream = flow.protocol == "TCP"
        self._connected = not self._stream
        self.sock = socket.socket(self.family, socket.SOCK_STREAM if self._stream else socket.SOCK_DGRAM)
        try:
            self.sock.setblocking(False)
            self.sock.setsockopt(_SOL[self.family], _RECVERR[self.family], 1)
            if flow.source is not None:
                self.sock.bind((flow.source, 0))
            self._open()
        except BaseException:
            self.sock.close()
            raise

    def _open(self) -> None:
        number = self.sock.connect_ex((self.flow.address, self.flow.port))
        if number not in (0, errno.EINPROGRESS):
            self.outcome = self._fate(number)
            return
        if self._stream:
            # An ICMP error that arrives while connect still holds the socket (a reject in this very namespace) is
            # kept as a soft error: nothing wakes up for it, but SO_ERROR has it.
            self.check_error()
            return
        # EPERM: stopped on the way out of this namespace. Whether by drop or by reject, the time until expiry tells.
        try:
            self.sock.send(b"who are you?\n")
        except PermissionError:
            self.check_error()
        except OSError as error:
            self.outcome = self._fate(error.errno or 0)

    @property
    def events(self) -> int:
        """What to wait for."""
        return selectors.EVENT_READ if self._connected else selectors.EVENT_WRITE

    def check_error(self) -> None:
        """Look for an error the socket holds."""
        number = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self.outcome = self._fate(number)

    def advance(self) -> None:
        """Go on after an event."""
        if not self._connected:
            self.check_error()
            self._connected = True
            return
        try:
            data = self.sock.recv(4096)
        except BlockingIOError:
            return
        except OSError as error:
            self.outcome = self._fate(error.errno or 0)
            return
        self._data += data
        if self._data.endswith(b"\n"):
            self.outcome = self._answer()
        elif not data:
            self.outcome = Refused()

    def expire(self) -> None:
        """The time is up."""
        self.check_error()
        if self.outcome is None:
            self.outcome = Dropped()

    def _answer(self) -> Answer:
        name, _, seen = self._data.decode().strip().rpartition(" ")
        address, _, port = seen.rpartition(":")
        own = self.sock.getsockname()
        return Answer(name, address.strip("[]"), int(port), own[0], own[1])

    def _fate(self, number: int) -> Outcome:
        by = self._icmp_sender()
        if number in _UNREACHABLE:
            return Unreachable()
        if number == errno.ECONNREFUSED and by is not None:
            return Rejected(by)
        if number in (errno.ECONNREFUSED, errno.ECONNRESET):
            return Refused()
        raise OSError(number, f"{self.flow}: {errno.errorcode.get(number, number)}")

    def _icmp_sender(self) -> str | None:
        """Who sent the ICMP error that the socket's error queue holds (for TCP: since Linux 5.19); None without."""
        with contextlib.suppress(BlockingIOError):
            _, ancillary, _, _ = self.sock.recvmsg(512, 512, _MSG_ERRQUEUE)
            for level, kind, data in ancillary:
                if (level, kind) == (_SOL[self.family], _RECVERR[self.family]):
                    origin = struct.unpack_from("IBBBBII", data)[1]
                    if origin in _ORIGIN_ICMP:
                        start, length = (16 + 4, 4) if self.family == socket.AF_INET else (16 + 8, 16)
                        return socket.inet_ntop(self.family, data[start : start + length])
        return None


def probe(flows: Sequence[Flow], timeout: float = DEFAULT_TIMEOUT, at_once: int = _AT_ONCE) -> list[Outcome]:
    """Try flows, many at once, and return what became of each, in order.

    Args:
        flows: what to try.
        timeout: seconds each may take.
        at_once: how many are under way at a time; many answers at once may overflow a server's buffers.

    Raises:
        OSError: a client could not even start, say for a source address that it does not have.
    """
    outcomes: list[Outcome] = []
    for start in range(0, len(flows), at_once):
        outcomes += _probe_some(flows[start : start + at_once], timeout)
    return outcomes


def _probe_some(flows: Sequence[Flow], timeout: float) -> list[Outcome]:
    attempts: list[_Attempt] = []
    with contextlib.ExitStack() as cleanup, selectors.DefaultSelector() as selector:
        for flow in flows:
            with flow.namespace.enter():
                attempt = _Attempt(flow, timeout)
            cleanup.callback(attempt.sock.close)
            attempts.append(attempt)
            if attempt.outcome is None:
                selector.register(attempt.sock, attempt.events, attempt)
        while selector.get_map():
            now = time.monotonic()
            waiting: list[_Attempt] = [key.data for key in selector.get_map().values()]
            for attempt in waiting:
                if attempt.deadline <= now:
                    attempt.expire()
                    selector.unregister(attempt.sock)
            if not selector.get_map():
                break
            ready = selector.select(max(0.0, min(a.deadline for a in waiting if a.outcome is None) - now))
            for key, _ in ready:
                attempt = key.data
                attempt.advance()
                if attempt.outcome is not None:
                    selector.unregister(attempt.sock)
                elif attempt.events != key.events:
                    selector.modify(attempt.sock, attempt.events, attempt)
    return [attempt.outcome for attempt in attempts if attempt.outcome is not None]


def connect(
    namespace: Namespace,
    address: str,
    port: int,
    protocol: Protocol = "TCP",
    timeout: float = DEFAULT_TIMEOUT,
    source: str | None = None,
) -> Outcome:
    """Try one flow; see :func:`probe`."""
    return probe([Flow(namespace, address, port, protocol, source)], timeout)[0]
