"""What the kernel tells about changes to a namespace's ruleset, transaction by transaction, however big they are.

``nft monitor`` (:mod:`netns.monitor`) prints what is written, but falls behind when thousands of chains come at once.
This keeps the kernel's messages as they are and looks at them afterwards.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Self

from netns.namespaces import Namespace

_NETLINK_NETFILTER, _SOL_NETLINK, _ADD_MEMBERSHIP, _NFNLGRP_NFTABLES = 12, 270, 1, 7
_SO_RCVBUFFORCE = 33
_BUFFER = 256 << 20
_KINDS = {0: "table", 3: "chain", 6: "rule", 9: "set", 12: "element"}  # and two above, the same deleted
_GENERATION = 15  # NFT_MSG_NEWGEN, the last of a transaction; numbers of linux/netfilter/nf_tables.h
_SUBSYSTEM = 10  # NFNL_SUBSYS_NFTABLES
_FAMILIES = {2: "ip", 10: "ip6"}
_TABLE = 1  # NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE
_NAME = {"chain": 3, "rule": 2, "set": 2, "element": 2}
# NFTA_CHAIN_NAME, NFTA_RULE_CHAIN, NFTA_SET_NAME, NFTA_SET_ELEM_LIST_SET


class Event(NamedTuple):
    """A change of a table, chain, rule, set (or map) or element.

    Attributes:
        what: ``add table``, ``delete chain`` and so on.
        family: ``ip`` or ``ip6``.
        table: the table's name.
        name: the chain's or set's name; a rule has its chain's, an element its set's; empty for a table.
    """

    what: str
    family: str
    table: str
    name: str


class Events:
    """Listens to a namespace's ruleset while its ``with`` statement lasts."""

    def __init__(self, namespace: Namespace) -> None:
        with namespace.enter():
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
        self._chunks: list[bytes] = []
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._listen, name="nftables events", daemon=True)
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        with contextlib.suppress(PermissionError):  # in a user namespace; then the buffer stays small, as changes do
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        self._socket.bind((0, 0))
        self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _NFNLGRP_NFTABLES)
        self._socket.settimeout(0.2)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)
        self._socket.close()

    def transactions(self) -> list[list[Event]]:
        """The transactions so far, in order, each with its changes in order; after the ``with`` statement.

        Raises:
            OSError: the kernel had more to say than there was room for.
        """
        if self._error is not None:
            raise self._error
        found: list[list[Event]] = [[]]
        for number, payload in self._messages():
            if number >> 8 != _SUBSYSTEM:
                continue
            if number & 0xFF == _GENERATION:
                found.append([])
                continue
            added, deleted = _KINDS.get(number & 0xFF), _KINDS.get((number & 0xFF) - 2)
            if (kind := added or deleted) and payload[0] in _FAMILIES:
                attributes = _strings(payload[4:])
                what = f"{'add' if added else 'delete'} {kind}"
                name = attributes.get(_NAME.get(kind, 0), "")
                found[-1].append(Event(what, _FAMILIES[payload[0]], attributes.get(_TABLE, ""), name))
        return [events for events in found if events]

    def _listen(self) -> None:
        try:
            while True:
                try:
                    self._chunks.append(self._socket.recv(1 << 20))
                except TimeoutError:  # all that had been written when the end was asked for has been read
                    if self._stop.is_set():
                        return
        except OSError as error:
            self._error = error

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        for chunk in self._chunks:
            start = 0
            while start + 16 <= len(chunk):
                length, number = struct.unpack_from("=IH", chunk, start)
                yield number, chunk[start + 16 : start + length]
                start += (length + 3) & ~3


def _strings(data: bytes) -> dict[int, str]:
    """Attributes of numbers up to 3 that hold text, by number."""
    found = {}
    start = 0
    while start + 4 <= len(data):
        length, number = struct.unpack_from("=HH", data, start)
        if number <= 3:
            found[number] = data[start + 4 : start + length].rstrip(b"\0").decode(errors="replace")
        start += (length + 3) & ~3
    return found
