"""A TCP proxy on loopback that treats connections as networks and balancers do on bad days.

It does not look into what it forwards, so TLS passes through. It may stand in front of any server.
"""

import select
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

from .connection import HUNG_UP, reset_on_close

Side = Literal["client", "server"]
_POLL_SECONDS = 0.05
_BLOCK = 65_536


class HostileProxy:
    """Forwards connections from a port of its own to a target, until told to do otherwise.

    Args:
        target: address and port that connections are forwarded to; may be changed for those to come.

    Attributes:
        port: where it listens, on 127.0.0.1.
        bytes_per_second: how fast each direction of each connection may be; None: as fast as it goes.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.bytes_per_second: int | None = None
        self._frozen: set[Side] = set()
        self._swallowing = False
        self._pairs: dict[threading.Thread, _Pair] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="hostile-proxy", daemon=True)
        self._acceptor.start()

    # --- what it does to connections ---

    @property
    def connections(self) -> int:
        """How many connections clients have through it."""
        with self._lock:
            return len(self._pairs)

    def cut(self) -> None:
        """Close all connections, on both sides, in the orderly way."""
        for pair in self._all():
            pair.ending = "cut"

    def reset(self) -> None:
        """Reset all connections, on both sides."""
        for pair in self._all():
            pair.ending = "reset"

    def go_silent(self, *sides: Side) -> None:
        """Keep all sockets, those to come as well, and forward nothing of what comes from these sides (all if none).

        Not even an end of the other side is handed on: this is what a lost back side of a balancer looks like.
        """
        self._frozen |= set(sides or ("client", "server"))

    def forget(self) -> None:
        """Have the connections that are open be silent for ever; later ones are forwarded. So does a NAT restart."""
        for pair in self._all():
            pair.forgotten = True

    def swallow(self) -> None:
        """Accept new connections, and never connect them to anything."""
        self._swallowing = True

    def behave(self) -> None:
        """Forward again, also what was held up. Connections that were forgotten or swallowed stay so."""
        self._frozen.clear()
        self._swallowing = False
        self.bytes_per_second = None

    def close(self) -> None:
        """End everything."""
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            threads = list(self._pairs)
        for thread in [self._acceptor, *threads]:
            thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- its threads ---

    def _all(self) -> list["_Pair"]:
        with self._lock:
            return list(self._pairs.values())

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            pair = _Pair(client)
            thread = threading.Thread(target=self._serve, args=(pair,), name="hostile-proxy-connection", daemon=True)
            with self._lock:
                self._pairs[thread] = pair
            thread.start()

    def _serve(self, pair: "_Pair") -> None:
        try:
            pair.forgotten = self._swallowing
            if not pair.forgotten:
                pair.connect(self.target)
            while not self._closing.is_set() and pair.is_alive:
                if pair.ending:
                    return
                if pair.forgotten:
                    pair.wait_for_client()
                else:
                    self._forward(pair)
        except OSError:
            pass  # Either side is gone: so is the other.
        finally:
            pair.close()
            with self._lock:
                del self._pairs[threading.current_thread()]

    def _forward(self, pair: "_Pair") -> None:
        sides: list[Side] = [side for side in ("client", "server") if side not in self._frozen]
        pair.check_frozen(self._frozen)
        for side in pair.readable(sides):
            limit = self.bytes_per_second
            size = _BLOCK if limit is None else max(limit // 20, 1)
            sent = pair.move(side, size)
            if limit is not None:
                self._closing.wait(sent / limit)


class _Pair:
    """A client's connection and what it leads to; read and written by one thread."""

    def __init__(self, client: socket.socket) -> None:
        self.sockets: dict[Side, socket.socket] = {"client": client}
        self.ending: Literal["", "cut", "reset"] = ""
        self.forgotten = False
        self.is_alive = True

    def connect(self, target: tuple[str, int]) -> None:
        """Connect to where it leads.

        Raises:
            OSError: nobody listens there.
        """
        self.sockets["server"] = socket.create_connection(target, timeout=10)
        for sock in self.sockets.values():
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(10)

    def readable(self, sides: list[Side]) -> list[Side]:
        """Those that have something to say."""
        if not sides:
            time.sleep(_POLL_SECONDS)
            return []
        ready, _, _ = select.select([self.sockets[side] for side in sides], [], [], _POLL_SECONDS)
        return [side for side in sides if self.sockets[side] in ready]

    def move(self, side: Side, size: int) -> int:
        """Hand on what one side says; returns how many bytes.

        Raises:
            OSError: either is gone.
        """
        data = self.sockets[side].recv(size)
        self.sockets["server" if side == "client" else "client"].sendall(data)
        self.is_alive = bool(data)
        return len(data)

    def wait_for_client(self) -> None:
        """Be silent for a moment; notices that the client has given up."""
        self._notice("client")
        time.sleep(_POLL_SECONDS)

    def check_frozen(self, frozen: set[Side]) -> None:
        """Notice that a client has given up on a connection nothing is read from."""
        if "client" in frozen:
            self._notice("client")

    def _notice(self, side: Side) -> None:
        poll = select.poll()
        poll.register(self.sockets[side], select.POLLRDHUP)
        self.is_alive = not any(event & HUNG_UP for _, event in poll.poll(0))

    def close(self) -> None:
        """Close both."""
        for sock in self.sockets.values():
            if self.ending == "reset":
                reset_on_close(sock)
            sock.close()
