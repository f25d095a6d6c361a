"""What the kernel tells about changes to a namespace's ruleset, transaction by transaction, however big they are.

``nft monitor`` (:mod:`netns.monitor`) prints what is written, but falls behind when thousands of chains come at once.
This keeps the kernel's messages as they are and looks at them afterwards.
"""

import io
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from netns import takeover_reader
from netns.namespaces import Namespace

_PATIENCE = 30.0
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
        self._namespace = namespace
        self._chunks: list[bytes] = []
        self._error: OSError | None = None

    def __enter__(self) -> Self:
        script = str(Path(takeover_reader.__file__))
        self._process = self._namespace.start(sys.executable, "-I", script, stdout=subprocess.PIPE)
        assert self._said.readline() == b"ready\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        with self._said as said:
            while head := said.read(takeover_reader.LENGTH.size):
                (length,) = takeover_reader.LENGTH.unpack(head)
                if length < 0:
                    self._error = OSError(-length, os.strerror(-length))
                else:
                    self._chunks.append(said.read(length))
        self._process.wait(_PATIENCE)

    @property
    def _said(self) -> io.BufferedReader:
        assert isinstance(self._process.stdout, io.TextIOWrapper)
        assert isinstance(self._process.stdout.buffer, io.BufferedReader)
        return self._process.stdout.buffer

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
