"""The server: it listens on loopback, has a thread for each connection, and keeps a log of requests."""

import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .answers import Answers, Exchange, Settings, Watch, find
from .certificates import Certificates
from .connection import ConnectionEnded, Request, Wire
from .faults import Fault
from .kubeconfig import kubeconfig_text
from .resources import BY_KIND
from .store import Store

_WAIT_SECONDS = 30.0
_HANDSHAKE_SECONDS = 10.0


class ApiServer:
    """A loopback API server.

    Args:
        certificates: None for HTTP, else it speaks HTTPS with them.
        store: what it serves; give two servers one store, and they are two of one cluster.
        settings: how it behaves (:class:`Settings` says what can be set).

    Attributes:
        faults: what goes wrong with requests, in order; may be changed at any time.
        requests: all requests that came, in order.
        port: where it listens, on 127.0.0.1; it stays the same over :meth:`refuse` and :meth:`accept`.
    """

    def __init__(
        self, *, certificates: Certificates | None = None, store: Store | None = None, settings: Settings | None = None
    ) -> None:
        self.store = store or Store()
        self.settings = settings or Settings()
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self._certificates = certificates
        self._context = certificates.server_context() if certificates else None
        self._answers = Answers(self.store, self.settings)
        self._closing = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._numbers = itertools.count(1)
        self._wires: dict[threading.Thread, Wire] = {}
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self.port = 0
        self.accept()

    # --- what it holds ---

    def put(self, *objects: Mapping[str, Any]) -> int:
        """Create or replace objects; returns the version of the last."""
        return self.store.put(*objects)

    def delete(self, kind: str, name: str, namespace: str = "") -> int:
        """Delete an object; returns the version of the deletion."""
        return self.store.delete(kind, name, namespace)

    def compact(self) -> None:
        """Make all versions before now expired. Watches that are open go on."""
        self.store.compact()

    def state(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        """All objects as they are, by kind, namespace and name."""
        return {
            (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): obj
            for obj in self.store.objects()
        }

    def lag(self) -> None:
        """Have lists of "any version" (resourceVersion=0) say what is there now, whatever comes; others are right."""
        self.settings.stale = {kind: self.store.snapshot(kind) for kind in BY_KIND}

    def catch_up(self) -> None:
        """End :meth:`lag`."""
        self.settings.stale = {}

    # --- watches that are open ---

    @property
    def watches(self) -> list[Watch]:
        """Watches that are open."""
        return self._answers.watches

    def tell(self, action: Callable[[Exchange], None], kind: str | None = None) -> int:
        """Have open watches (of a kind) do something; returns how many.

        Actions are methods of :class:`~apiserver.answers.Exchange`: ``Exchange.end`` (orderly), ``Exchange.cut``,
        ``Exchange.reset``, ``Exchange.expire`` (410 as an event); or a function that is given one, and may ``say``
        lines.
        """
        watches = [watch for watch in self.watches if kind in {None, watch.kind}]
        for watch in watches:
            watch.todo.append(action)
        self.store.wake()
        return len(watches)

    def say(self, line: bytes, kind: str) -> None:
        """Have open watches of a kind say a line, whatever it is."""
        self.tell(lambda exchange: exchange.say(line), kind)

    def wait_for_watches(self, *kinds: str, since: float = 0.0, seconds: float = _WAIT_SECONDS) -> None:
        """Wait until watches of these kinds (all, if none are named) are open, begun after a time."""
        wanted = set(kinds or BY_KIND)
        self.wait(
            lambda: wanted <= {watch.kind for watch in self.watches if watch.request.time >= since},
            f"no watches of {sorted(wanted)}",
            seconds,
        )

    @staticmethod
    def wait(condition: Callable[[], object], complaint: str, seconds: float = _WAIT_SECONDS) -> None:
        """Wait until something is so.

        Raises:
            AssertionError: it is not in time.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{complaint} within {seconds} s"
            time.sleep(0.005)

    def asked(self, kind: str | None = None, verb: str | None = None, since: float = 0.0) -> list[Request]:
        """Requests that came, of a kind and verb (``list``, ``watch``), after a time."""
        return [
            request
            for request in list(self.requests)
            if request.time >= since and verb in {None, request.verb} and kind in {None, kind_of(request)}
        ]

    # --- its connections ---

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"{'https' if self._context else 'http'}://127.0.0.1:{self.port}"

    def kubeconfig(self, path: Path, *, token: str = "", token_file: Path | None = None, port: int = 0) -> Path:
        """Write a kubeconfig that leads to it (or through a proxy at another port); returns the path."""
        url = self.url if not port else self.url.replace(f":{self.port}", f":{port}")
        authority = self._certificates.authority if self._certificates else None
        path.write_text(kubeconfig_text(url, authority, token, token_file))
        return path

    def refuse(self) -> None:
        """Go away: connections end, and new ones are refused. What is stored stays."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        if self._acceptor is not None:
            self._acceptor.join(1)
        self.interrupt()

    def accept(self) -> None:
        """Come (back) and accept connections."""
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128, reuse_port=False)
        self.port = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, args=(self._listener,), name="apiserver", daemon=True)
        self._acceptor.start()

    def interrupt(self) -> None:
        """End all connections."""
        with self._lock:
            wires = list(self._wires.values())
        for wire in wires:
            wire.interrupt()

    def freeze(self) -> None:
        """Stop like a process that got SIGSTOP: the kernel still accepts connections, and nobody answers."""
        self._running.clear()

    def thaw(self) -> None:
        """End :meth:`freeze`."""
        self._running.set()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        with self._lock:
            return len(self._wires)

    def close(self) -> None:
        """End everything."""
        self._closing.set()
        self._running.set()
        self.refuse()
        self.store.wake()
        with self._lock:
            threads = list(self._wires)
        for thread in filter(None, [self._acceptor, *threads]):
            thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- its threads ---

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing.is_set():
            self._running.wait()
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire = Wire(sock, self._running, self._closing)
            thread = threading.Thread(target=self._serve, args=(wire, next(self._numbers)), name="apiserver-connection")
            thread.daemon = True
            with self._lock:
                self._wires[thread] = wire
            thread.start()

    def _serve(self, wire: Wire, number: int) -> None:
        try:
            if self._context is not None:
                self._running.wait()
                wire.sock.settimeout(_HANDSHAKE_SECONDS)
                wire.sock = self._context.wrap_socket(wire.sock, server_side=True)
                wire.sock.settimeout(None)
            while not self._closing.is_set() and (request := wire.read_request()) is not None:
                request.connection = number
                self.requests.append(request)
                self._answer(wire, request)
                if request.headers.get("connection", "").lower() == "close":
                    return
        except (ConnectionEnded, ssl.SSLError, OSError):
            pass  # Clients come and go.
        finally:
            wire.close()
            with self._lock:
                del self._wires[threading.current_thread()]

    def _answer(self, wire: Wire, request: Request) -> None:
        kind = kind_of(request)
        faults: list[Fault] = []
        for fault in list(self.faults):
            if fault.claims(request, kind):
                status = fault.answer(request)
                if status is not None:
                    Exchange(wire, request, faults).refuse(status)
                    return
                faults.append(fault)
        self._answers.answer(Exchange(wire, request, faults))


def kind_of(request: Request) -> str | None:
    """The kind that a request asks for; None: there is no such resource."""
    route = find(request.path)
    return route[0].kind if route else None
