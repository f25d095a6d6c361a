"""HTTP/1.1 on one socket: requests are read, answers written, and connections end in more ways than is nice."""

import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

_MAX_HEAD = 64 * 1024
_POLL_SECONDS = 0.05
HUNG_UP = select.POLLRDHUP | select.POLLHUP | select.POLLERR
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 410: "Gone",
           422: "Unprocessable Entity", 429: "Too Many Requests", 500: "Internal Server Error",
           503: "Service Unavailable", 504: "Gateway Timeout"}  # fmt: skip


class ConnectionEnded(Exception):  # noqa: N818 -- it is no error that a connection ends
    """Nothing more goes over this connection."""


@dataclass(slots=True)
class Request:
    """One request, as it came.

    Attributes:
        method: as ``GET``.
        path: without the query.
        query: the query's parameters; of one that comes twice the last.
        headers: by lower-case name.
        time: when it had been read, as of ``time.monotonic()``.
        connection: a number for the connection that it came over.
        status: what was answered; 0 as long as nothing was.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    time: float = field(default_factory=time.monotonic)
    connection: int = 0
    status: int = 0

    @property
    def is_watch(self) -> bool:
        """Whether it is a watch, with or without initial events."""
        return self.query.get("watch") in {"true", "1"}

    @property
    def is_streaming_list(self) -> bool:
        """Whether it is a watch that begins with what is there."""
        return self.is_watch and self.query.get("sendInitialEvents") in {"true", "1"}

    @property
    def verb(self) -> str:
        """``watch`` or ``list``; a streaming list is a ``watch``."""
        return "watch" if self.is_watch else "list"

    @property
    def token(self) -> str | None:
        """The bearer token; None without one."""
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        return token if kind.lower() == "bearer" else None


class Wire:
    """A connected socket.

    Args:
        sock: the socket, which becomes the wire's.
        running: nothing is sent or read while it is not set, like in a process that was stopped.
        closing: set when the server ends.
    """

    def __init__(self, sock: socket.socket, running: threading.Event, closing: threading.Event) -> None:
        self.sock = sock
        self.closing = closing
        self._running = running
        self._received = b""
        self._poll = select.poll()
        self._poll.register(sock, select.POLLRDHUP)

    def read_request(self) -> Request | None:
        """The next request; None if there is none."""
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if len(self._received) > _MAX_HEAD or not self._receive():
                return None
        head, self._received = self._received[:end].decode("latin-1"), self._received[end + 4 :]
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        while len(self._received) < length:
            if not self._receive():
                return None
        self._received = self._received[length:]
        self._running.wait()
        parts = urlsplit(target)
        return Request(method, parts.path, dict(parse_qsl(parts.query, keep_blank_values=True)), headers)

    def _receive(self) -> bool:
        self._running.wait()
        try:
            data = self.sock.recv(65_536)
        except OSError:
            return False
        self._received += data
        return bool(data)

    def send(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            ConnectionEnded: the other side is gone.
        """
        self._running.wait()
        try:
            self.sock.sendall(data)
        except OSError:
            raise ConnectionEnded from None

    def pause(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            ConnectionEnded: the server ends, or the other side is gone.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.check()
            self.closing.wait(min(left, _POLL_SECONDS))

    def check(self) -> None:
        """Find out whether anyone is there still.

        Raises:
            ConnectionEnded: the server ends, or the other side is gone.
        """
        if self.closing.is_set() or any(event & HUNG_UP for _, event in self._poll.poll(0)):
            raise ConnectionEnded

    def hold(self) -> None:
        """Keep the connection and say nothing, until the other side gives up or the server ends.

        Raises:
            ConnectionEnded: always, at last.
        """
        while True:
            self.pause(60)

    def cut(self) -> None:
        """End the connection as a process does that dies.

        Raises:
            ConnectionEnded: always.
        """
        self.close()
        raise ConnectionEnded

    def reset(self) -> None:
        """End the connection by an RST, whatever is on its way.

        Raises:
            ConnectionEnded: always.
        """
        reset_on_close(self.sock)
        self.close()
        raise ConnectionEnded

    def interrupt(self) -> None:
        """Have whatever is going on with the socket end, from another thread."""
        with suppress(OSError):  # It is gone already.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        if isinstance(self.sock, ssl.SSLSocket):
            socket.close(self.sock.detach())
        else:
            self.sock.close()


class Body:
    """The answer to one request, whose bytes go through whatever faults are meant for it.

    Args:
        wire: where it goes.
        length: how many bytes it will be; None: in chunks, of which there may be any number.
        pour: writes bytes of the body to :meth:`frame`, or does something else with them.
    """

    def __init__(self, wire: Wire, length: int | None) -> None:
        self.wire = wire
        self.sent = 0
        self._chunked = length is None

    def frame(self, data: bytes, *, announce: int | None = None) -> None:
        """Send bytes as one chunk, where there are chunks; one that announces more than there is, if told so."""
        if not data:
            return
        self.sent += len(data)
        self.wire.send(b"%x\r\n%b\r\n" % (announce or len(data), data) if self._chunked else data)

    def finish(self) -> None:
        """Say that this was all."""
        if self._chunked:
            self.wire.send(b"0\r\n\r\n")


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """The first lines of an answer."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def reset_on_close(sock: socket.socket) -> None:
    """Have a socket send an RST when it is closed."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
