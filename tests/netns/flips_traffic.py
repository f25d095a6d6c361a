"""Clients that never pause, and what became of each of their attempts, with the time.

    with Traffic({"outside": Flow(...), "pod": Flow(...)}, every=0.1) as traffic:
        ...                       # change something
        traffic.wait_round()      # every flow has been tried since
    traffic.tries                 # [Try("outside", begun, sent, ended, Answer(...)), ...]

Every attempt comes from a source port of its own, and 48,000 others come before it is used again: none meets the
tracked connection of an earlier one, and shares its fate instead of meeting the rules. A connection request is sent
once: an attempt is given up before the kernel would send it again, unless the handshake is done, so a lost packet is
a failed attempt and not a slow one.
"""

import contextlib
import dataclasses
import itertools
import selectors
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from netns import probe
from netns.namespaces import Namespace
from netns.probe import Dropped, Flow, Outcome

HANDSHAKE = 0.9
"""Seconds for a TCP handshake; Linux sends a SYN again after 1 s."""
REPLY = 1.5
"""Seconds for an answer over UDP."""
GREETING = 15.0
"""Seconds for a server's first words once TCP is connected."""
ON_THE_WAY = 0.3
"""Seconds that a packet may take to the rules: it passes them in the call that sends it, or shortly after."""

_PORTS = (*range(10_000, 30_000), *range(33_000, 61_000))
_source_ports: weakref.WeakKeyDictionary[Namespace, Iterator[int]] = weakref.WeakKeyDictionary()
_ANY = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104  any source, not any listener
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt of a flow.

    Attributes:
        name: the flow's name.
        begun: when it began, like the others in seconds of time.monotonic().
        sent: when its first packet had been sent.
        ended: when its outcome was known.
        outcome: what became of it.
    """

    name: str
    begun: float
    sent: float
    ended: float
    outcome: Outcome

    @property
    def decided(self) -> tuple[float, float]:
        """From when to when rules may have decided about it."""
        if isinstance(self.outcome, Dropped):  # waiting came after
            return self.begun, min(self.ended, self.sent + ON_THE_WAY)
        return self.begun, self.ended


class _Attempt(probe._Attempt):
    """A flow under way, from a source port that is given."""

    def __init__(self, name: str, flow: Flow, source_port: int) -> None:
        self.name = name
        self._from = (flow.source, source_port)
        self.begun = time.monotonic()
        super().__init__(dataclasses.replace(flow, source=None), HANDSHAKE if flow.protocol == "TCP" else REPLY)
        self.sent = time.monotonic()

    def _open(self) -> None:
        address, port = self._from
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.sock.bind((address or _ANY[self.family], port))
        super()._open()

    def advance(self) -> None:
        super().advance()
        if self._connected and self._stream:
            self.deadline = self.begun + GREETING


class Traffic:
    """Tries flows over and over while its ``with`` statement lasts, a thread for each namespace that they start in.

    Args:
        flows: what to try, by name.
        every: seconds between two attempts of one flow; the flows of a namespace take turns evenly.

    Attributes:
        tries: the attempts that have ended. All that began have, once the ``with`` statement is over.
    """

    def __init__(self, flows: Mapping[str, Flow], every: float) -> None:
        self.flows = dict(flows)
        self.tries: list[Try] = []
        self._every = every
        self._rounds = dict.fromkeys(self.flows, 0.0)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        by_namespace: dict[Namespace, dict[str, Flow]] = {}
        for name, flow in self.flows.items():
            by_namespace.setdefault(flow.namespace, {})[name] = flow
        self._threads = [
            threading.Thread(target=self._guarded, args=(namespace, some), name=f"traffic {namespace}", daemon=True)
            for namespace, some in by_namespace.items()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self.wait_round()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(GREETING + 15)
        if kind is None:
            self._check()
            if any(thread.is_alive() for thread in self._threads):
                msg = "clients did not end"
                raise TimeoutError(msg)

    def wait_round(self, timeout: float = 30) -> None:
        """Wait until every flow has been begun since now.

        Raises:
            TimeoutError: that took too long.
        """
        since = time.monotonic()
        while min(self._rounds.values()) < since:
            self._check()
            if time.monotonic() > since + timeout:
                msg = f"no attempt of {min(self._rounds, key=self._rounds.__getitem__)} within {timeout} s"
                raise TimeoutError(msg)
            time.sleep(0.002)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _guarded(self, namespace: Namespace, flows: Mapping[str, Flow]) -> None:
        try:
            with namespace.enter():
                self._run(flows, _source_ports.setdefault(namespace, itertools.cycle(_PORTS)))
        except BaseException as error:
            self._error = error

    def _run(self, flows: Mapping[str, Flow], ports: Iterator[int]) -> None:
        pace = self._every / len(flows)
        turns: Iterator[str] = itertools.cycle(flows)
        due = time.monotonic()
        live: dict[socket.socket, _Attempt] = {}
        with contextlib.ExitStack() as cleanup, selectors.DefaultSelector() as selector:
            cleanup.callback(lambda: [sock.close() for sock in live])
            while True:
                now = time.monotonic()
                stopping = self._stop.is_set()
                if stopping and not live:
                    return
                if not stopping and now >= due:
                    name = next(turns)
                    attempt = _Attempt(name, flows[name], next(ports))
                    due = max(due + pace, now)
                    self._rounds[name] = attempt.begun
                    if attempt.outcome is None:
                        live[attempt.sock] = attempt
                        selector.register(attempt.sock, attempt.events, attempt)
                    else:
                        self._end(attempt)
                first = min((attempt.deadline for attempt in live.values()), default=now + 0.1)
                wait = min(first, now + 0.1 if stopping else due) - time.monotonic()
                for key, _ in selector.select(max(0.0, wait)):
                    attempt = key.data
                    attempt.advance()
                    if attempt.outcome is None and attempt.events != key.events:
                        selector.modify(attempt.sock, attempt.events, attempt)
                # What was late already before this look at the sockets, and has nothing to say still.
                for attempt in list(live.values()):
                    if attempt.outcome is None and attempt.deadline <= now:
                        attempt.expire()
                    if attempt.outcome is not None:
                        selector.unregister(attempt.sock)
                        del live[attempt.sock]
                        self._end(attempt)

    def _end(self, attempt: _Attempt) -> None:
        attempt.sock.close()
        ended = time.monotonic()
        outcome = attempt.outcome or Dropped()
        self.tries.append(Try(attempt.name, attempt.begun, attempt.sent, ended, outcome))


class Conversations:
    """Long TCP connections that go on exchanging data while the ``with`` statement lasts.

    Args:
        flows: whom to connect to, by name; the servers echo (:mod:`netns.servers`).
        every: seconds between two exchanges of one connection.

    Attributes:
        rounds: the number of exchanges of each connection so far.
        broken: what went wrong, by name; empty if nothing did.
    """

    def __init__(self, flows: Mapping[str, Flow], every: float = 0.01, patience: float = 10) -> None:
        self.rounds = dict.fromkeys(flows, 0)
        self.broken: dict[str, str] = {}
        self._flows = dict(flows)
        self._every = every
        self._patience = patience
        self._sockets: dict[str, socket.socket] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="conversations", daemon=True)

    def __enter__(self) -> Self:
        try:
            for name, flow in self._flows.items():
                self._sockets[name] = self._connect(flow)
        except BaseException:
            self._close()
            raise
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(self._patience * 2)
        self._close()

    def _close(self) -> None:
        for sock in self._sockets.values():
            sock.close()

    def _connect(self, flow: Flow) -> socket.socket:
        with flow.namespace.enter():
            source = None if flow.source is None else (flow.source, 0)
            sock = socket.create_connection((flow.address, flow.port), self._patience, source)
        if not sock.recv(4096).endswith(b"\n"):
            sock.close()
            msg = f"no greeting: {flow}"
            raise OSError(msg)
        return sock

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            words = f"{number:08}\n".encode()
            speaking = {name: sock for name, sock in self._sockets.items() if name not in self.broken}
            for name, sock in speaking.items():
                self._note(name, sock.sendall, words)
            for name, sock in speaking.items():
                if name not in self.broken:
                    self._note(name, partial(self._expect, sock), words)
                    self.rounds[name] += 1
            self._stop.wait(self._every)

    def _note(self, name: str, action: Callable[[bytes], None], words: bytes) -> None:
        try:
            action(words)
        except (OSError, ValueError) as error:
            self.broken[name] = f"after {self.rounds[name]} exchanges: {error!r}"

    @staticmethod
    def _expect(sock: socket.socket, words: bytes) -> None:
        got = b""
        while len(got) < len(words):
            data = sock.recv(len(words) - len(got))
            if not data:
                msg = "closed by the server"
                raise ValueError(msg)
            got += data
        if got != words:
            msg = f"sent {words!r}, got {got!r}"
            raise ValueError(msg)


class Both:
    """Long conversations and new attempts side by side, from when it is entered until it is left."""

    traffic: Traffic
    long: Conversations
    _running = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.long)
            stack.enter_context(self.traffic)
            self._running = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.__exit__(kind, error, trace)
