"""Word of changes that other programs make to our table, or of its loss, from the kernel.

The kernel tells a multicast group of every change to nftables (linux/netfilter/nfnetlink.h, ``NFNLGRP_NFTABLES``): a
message per object, which begins with its table's name, and after those of a transaction one with the new generation,
which names the program. Each carries the netlink port of the socket that asked for the change; that tells our own
changes from those of others. Process ids would not: containers have their own.
"""

import contextlib
import ctypes
import errno
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from nodeproxy.kernel import netlink
from nodeproxy.kernel.errors import KernelError
from nodeproxy.kube.addresses import Family
from nodeproxy.ruleset.render import TABLE

_GROUP = 7  # NFNLGRP_NFTABLES
_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33  # asm-generic/socket.h
_RECEIVE_BUFFER = 8 << 20  # bytes; the kernel fills it only when others change much at once
_MESSAGE_BUFFER = 1 << 18

_NEW_RULE, _DELETE_RULE, _NEW_GENERATION = 6, 8, 15  # linux/netfilter/nf_tables.h
_GENERATION_PROGRAM = 3
_FAMILIES = {2: Family.IPV4, 10: Family.IPV6}  # NFPROTO_IPV4, NFPROTO_IPV6
_OUR_TABLE = netlink.attribute_bytes(1, TABLE.encode() + b"\0")

_LONGEST_OVERRUN = 1.0  # seconds until a loss is told of in any case (and again), should others never pause
_RECENT_PORTS = 8
_MOST_KINDS = 256  # of (port, family, program) that are told apart between two looks
_MOST_CHAINS = 20_000

_log = structlog.get_logger(__name__)


class WatchError(KernelError):
    """The kernel does not tell of changes; the message says why."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What one program did to the table of one family.

    Attributes:
        family: the table's family.
        program: the program's name as the kernel has it (15 bytes at most); empty if it is not known.
        transactions: how many there were.
        chains: chains whose rules were changed; None: too many to tell, or not known.
        lost: the kernel could not keep up telling: something may have happened, or nothing.
    """

    family: Family
    program: str
    transactions: int = 1
    chains: frozenset[str] | None = frozenset()
    lost: bool = False

    def and_then(self, other: "Disturbance") -> "Disturbance":
        """This and another one of the same family and program, in one."""
        chains = None if self.chains is None or other.chains is None else self.chains | other.chains
        return Disturbance(
            self.family,
            self.program,
            self.transactions + other.transactions,
            None if chains is None or len(chains) > _MOST_CHAINS else chains,
            self.lost or other.lost,
        )


@dataclass(slots=True)
class _Record:
    """Changes of one kind, until somebody takes them."""

    transactions: int = 0
    chains: set[str] | None = field(default_factory=set)
    lost: bool = False

    def add(self, chains: set[str] | None, *, transactions: int = 1, lost: bool = False) -> None:
        self.transactions += transactions
        self.lost |= lost
        if self.chains is None or chains is None or len(self.chains) + len(chains) > _MOST_CHAINS:
            self.chains = None
        else:
            self.chains |= chains


class TableWatch:
    """Calls ``changed`` from a thread of its own when somebody else has changed the table of either family.

    Args:
        changed: is called soon after a change, once or more; :meth:`take` says what it was.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._own: deque[int] = deque(maxlen=_RECENT_PORTS)
        self._records: dict[tuple[int, Family, str], _Record] = {}
        self._touched: dict[Family, set[str]] = {}  # by the transaction that is being told of, with chains
        self._touched_by = 0
        self._overrun_since: float | None = None
        self._socket: socket.socket | None = None
        self._stop = -1
        self._thread = threading.Thread(target=self._run, name="table-watch", daemon=True)
        self._working = False

    @property
    def working(self) -> bool:
        """Whether changes are told of; once it has ended by itself, they are not."""
        return self._working

    def start(self) -> None:
        """Start, in the network namespace of the calling thread; no change from now on is missed.

        Raises:
            WatchError: the kernel does not tell, say for lack of CAP_NET_ADMIN.
        """
        try:
            sock = _listen()
        except OSError as error:
            msg = f"listening to changes of nftables: {error.strerror or error}"
            raise WatchError(msg) from error
        self._socket, self._stop = sock, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._filter()
        self._working = True
        self._thread.start()

    def stop(self) -> None:
        """Stop at once, and close the socket; does nothing if it was never started."""
        if self._socket is None:
            return
        os.eventfd_write(self._stop, 1)
        self._thread.join(2.0)
        self._working = False
        self._socket.close()
        os.close(self._stop)
        self._socket = None

    def own(self, port: int) -> None:
        """Take changes asked for through this netlink port for our own; to be said before the port is used.

        The kernel is told not to wake anybody for them, so that a big load of our own fills no buffer.
        """
        with self._lock:
            if self._own and self._own[-1] == port:
                return
            self._own.append(port)
        self._filter()

    def take(self) -> list[Disturbance]:
        """What has happened since the last call, by family and program, in that order."""
        merged: dict[tuple[str, str], tuple[Family, _Record]] = {}
        with self._lock:
            records, self._records = self._records, {}
            own = set(self._own)
        for (port, family, program), record in records.items():
            if port in own:
                continue  # a port that became known as ours only after its first use
            _, sum_ = merged.setdefault((family.label, program), (family, _Record()))
            sum_.add(record.chains, transactions=record.transactions, lost=record.lost)
        return [
            Disturbance(
                family,
                program,
                record.transactions,
                None if record.chains is None else frozenset(record.chains),
                record.lost,
            )
            for (_, program), (family, record) in sorted(merged.items())
        ]

    def _filter(self) -> None:
        """Have the kernel drop word of our own changes."""
        if self._socket is None:
            return
        with self._lock:
            program = _drop_ports(tuple(self._own))
        code = ctypes.create_string_buffer(program, len(program))
        option = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
        # Without it they are told apart in here, at some cost.
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, option)

    def _run(self) -> None:
        sock = self._socket
        if sock is None:
            return
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        buffer = memoryview(bytearray(_MESSAGE_BUFFER))
        try:
            while True:
                overrun = self._overrun_since
                ready = {descriptor for descriptor, _ in poll.poll(None if overrun is None else 0)}
                if self._stop in ready:
                    return
                if overrun is not None and (not ready or time.monotonic() > overrun + _LONGEST_OVERRUN):
                    # While something waits the kernel may still keep things to itself: then this is not the last word.
                    self._overrun_since = time.monotonic() if ready else None
                    self._lose()
                if ready:
                    self._receive(sock, buffer)
        except Exception:  # whatever it is, somebody has to know that nobody listens any more
            _log.exception("following changes of the table failed")
            self._working = False
            self._lose()

    def _receive(self, sock: socket.socket, buffer: memoryview) -> None:
        try:
            size = sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            # Until all that waits has been read, the kernel adds nothing and says no more about it (netlink_overrun):
            # only then does a look at the table show what was missed.
            if self._overrun_since is None:
                self._overrun_since = time.monotonic()
            return
        with self._lock:
            own = set(self._own)
        for kind, port, body in _messages(buffer[:size]):
            if port in own:
                continue
            if port != self._touched_by:
                self._end_transaction("")  # its end was lost
                self._touched_by = port
            if kind == _NEW_GENERATION:
                name = netlink.attributes(body[4:]).get(_GENERATION_PROGRAM)
                self._end_transaction(netlink.text(name) if name is not None else "")
            else:
                self._note(kind, body)

    def _note(self, kind: int, body: memoryview) -> None:
        """Keep in mind that an object of some table was changed, if it is ours."""
        family = _FAMILIES.get(body[0]) if len(body) else None
        if family is None or body[4 : 4 + len(_OUR_TABLE)] != _OUR_TABLE:
            return
        chains = self._touched.setdefault(family, set())
        if kind in {_NEW_RULE, _DELETE_RULE} and len(chains) <= _MOST_CHAINS:
            name = netlink.attributes(body[4:]).get(2)
            if name is not None:
                chains.add(netlink.text(name))

    def _end_transaction(self, program: str) -> None:
        touched, self._touched = self._touched, {}
        if not touched:
            return
        with self._lock:
            for family, chains in touched.items():
                self._record(self._touched_by, family, program).add(chains)
        self._changed()

    def _lose(self) -> None:
        """Anything may have happened to the tables."""
        self._touched = {}
        with self._lock:
            for family in Family:
                self._record(0, family, "").add(None, transactions=0, lost=True)
        self._changed()

    def _record(self, port: int, family: Family, program: str) -> _Record:
        key = (port, family, program)
        if key not in self._records and len(self._records) >= _MOST_KINDS:
            key = (0, family, "")
        return self._records.setdefault(key, _Record())


def _listen() -> socket.socket:
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink.NETFILTER)
    try:
        sock.setblocking(False)
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
        except OSError:  # beyond net.core.rmem_max only with CAP_NET_ADMIN in the first user namespace
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        sock.bind((0, 0))
        sock.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _GROUP)
    except OSError:
        sock.close()
        raise
    return sock


def _messages(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Kind, port and body (nfgenmsg and attributes) of each message of nftables in a datagram."""
    for length, message, port, offset in netlink.each_message(data):
        if message >> 8 == netlink.NFTABLES:
            yield message & 0xFF, port, data[offset : offset + length]


def _drop_ports(ports: Sequence[int]) -> bytes:
    """A classic BPF program (linux/filter.h) that drops datagrams whose first message carries one of these ports.

    All messages of a datagram are of one transaction, so of one port.
    """
    load_port, jump_if_equal, give_back = 0x20, 0x15, 0x06
    count = len(ports)
    code = [(load_port, 0, 0, 12)]
    for index, port in enumerate(ports):
        # Words are loaded in network byte order, but the header has the host's.
        code.append((jump_if_equal, count - index, 0, int.from_bytes(struct.pack("=I", port), "big")))
    code += [(give_back, 0, 0, 0xFFFFFFFF), (give_back, 0, 0, 0)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
