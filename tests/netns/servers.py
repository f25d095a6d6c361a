"""TCP and UDP servers that answer with their name and the client's address as they saw it.

One thread serves them all, whatever namespace each lives in: a socket stays in the namespace it was made in.
"""

import contextlib
import os
import queue
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Literal

from netns.namespaces import Namespace

Protocol = Literal["TCP", "UDP"]


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _line(name: str, peer: tuple[str, int]) -> bytes:
    address, port = peer[:2]
    return f"{name} {f'[{address}]' if ':' in address else address}:{port}\n".encode()


class Server:
    """A name that is served on one port of some addresses. Made by :meth:`ServerLoop.serve`."""

    def __init__(self, loop: "ServerLoop", name: str, sockets: Sequence[socket.socket]) -> None:
        self._loop = loop
        self.name = name
        self.sockets = list(sockets)

    def close(self) -> None:
        """Stop to listen, and reset what is connected. Returns when it is done; the second time does nothing."""
        self._loop.submit(lambda: self._loop.drop(self))


class ServerLoop:
    """The thread that serves every :class:`Server`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._running = True
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._work)
        self._thread = threading.Thread(target=self._run, name="servers", daemon=True)
        self._thread.start()

    def serve(
        self,
        namespace: Namespace,
        name: str,
        addresses: Sequence[str],
        port: int,
        protocols: Sequence[Protocol] = ("TCP", "UDP"),
    ) -> Server:
        """Answer on a port of some addresses of a namespace, as ``name``.

        Each address gets a socket of its own: an answer from a wildcard socket may leave from another address.

        Raises:
            OSError: an address is not there, or the port is taken.
        """
        sockets: list[socket.socket] = []
        with contextlib.ExitStack() as undo, namespace.enter():
            for address in addresses:
                for protocol in protocols:
                    kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
                    sock = socket.socket(_family(address), kind)
                    undo.callback(sock.close)
                    sockets.append(sock)
                    sock.setblocking(False)
                    if protocol == "TCP":
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind((address, port))
                    if protocol == "TCP":
                        sock.listen(4096)
            undo.pop_all()
        server = Server(self, name, sockets)
        self.submit(lambda: self._add(server))
        return server

    def submit(self, job: Callable[[], None], timeout: float = 5) -> None:
        """Have the thread do something, and wait for it.

        Raises:
            TimeoutError: the thread has ended or hangs.
        """
        done = threading.Event()
        self._jobs.put((job, done))
        os.write(self._wake_write, b"x")
        if not done.wait(timeout):
            msg = "the servers' thread does not answer"
            raise TimeoutError(msg)

    def drop(self, server: Server) -> None:
        """Close a server's sockets; only for the thread itself."""
        for sock in server.sockets:
            self._forget(sock)
        server.sockets.clear()

    def close(self) -> None:
        """End the thread and close every socket. Does nothing the second time."""
        if not self._thread.is_alive():
            return

        def stop() -> None:
            self._running = False

        self.submit(stop)
        self._thread.join(5)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        while self._running:
            for key, _ in self._selector.select():
                if key.fileobj in self._selector.get_map():  # an earlier event of this round may have closed it
                    key.data()

    def _work(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        while True:
            try:
                job, done = self._jobs.get_nowait()
            except queue.Empty:
                return
            try:
                job()
            finally:
                done.set()

    def _add(self, server: Server) -> None:
        for sock in server.sockets:
            stream = sock.type == socket.SOCK_STREAM
            handler = self._accepter(server, sock) if stream else self._answerer(server, sock)
            self._selector.register(sock, selectors.EVENT_READ, handler)

    def _accepter(self, server: Server, listener: socket.socket) -> Callable[[], None]:
        def accept() -> None:
            with contextlib.suppress(OSError):  # the client may be gone again
                while True:
                    connection, peer = listener.accept()
                    connection.setblocking(False)
                    server.sockets.append(connection)
                    self._selector.register(connection, selectors.EVENT_READ, self._echoer(server, connection))
                    connection.send(_line(server.name, peer))

        return accept

    def _echoer(self, server: Server, connection: socket.socket) -> Callable[[], None]:
        def echo() -> None:
            try:
                data = connection.recv(65536)
                if data:
                    connection.send(data)
                    return
            except BlockingIOError:
                return
            except OSError:
                pass
            server.sockets.remove(connection)
            self._forget(connection)

        return echo

    def _answerer(self, server: Server, sock: socket.socket) -> Callable[[], None]:
        def answer() -> None:
            with contextlib.suppress(OSError):  # nothing more to read, or an ICMP error for an earlier answer
                while True:
                    _, peer = sock.recvfrom(65536)
                    sock.sendto(_line(server.name, peer), peer)

        return answer

    def _forget(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        sock.close()
