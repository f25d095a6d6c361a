"""Whether a table still is as we left it, told at a fraction of the cost of reading it back.

Dumps are compared as bytes. What was found right once is kept as digests: one for each chain, one for each set. Those
that still match are not looked into; those that do not, or that our own commits have touched since, are compared with
what the table should hold, element by element, a set at a time.

Two things about nftables make this sound. A rule never changes: whoever replaces one makes another, with a handle that
the table has never given before. And a table that was made anew has another handle itself (Linux 4.17).
"""

import functools
import hashlib
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodeproxy.kernel import netlink, readback
from nodeproxy.kernel.netlink import DumpInterruptedError, NftSocket, attribute_bytes, attributes
from nodeproxy.kernel.readback import TableForeignError
from nodeproxy.kube.addresses import Family, canonical_address
from nodeproxy.ruleset.diff import TableState
from nodeproxy.ruleset.mirror import slot_map_number
from nodeproxy.ruleset.operations import (
    AddChain,
    AddRule,
    FillSlots,
    FlushChain,
    FreeSlots,
    Operation,
    RemoveChain,
    ReplaceTable,
)
from nodeproxy.ruleset.render import TABLE, Base
from nodeproxy.ruleset.rules import DROP, ElementKey, Target

_TABLE_ATTRIBUTE = netlink.attribute_bytes(1, TABLE.encode() + b"\0")
_AFTER_TABLE = len(_TABLE_ATTRIBUTE)
_ATTRIBUTE = struct.Struct("=HH")
_GOTO, _DROP = struct.pack(">i", -4), struct.pack(">i", 0)

Name = str


@dataclass(frozen=True, slots=True)
class Difference:
    """Something in the table is not as it should be.

    Attributes:
        reason: the first thing that was found.
        chains: chains whose rules somebody else wrote, whatever their comments say.
        dormant: it only has to be woken, as far as is known.
    """

    reason: str
    chains: frozenset[Name] = frozenset()
    dormant: bool = False


@dataclass(slots=True)
class _Rules:
    """What the rules of a table come to.

    Attributes:
        sums: a sum over their handles, in order, for each chain that has any.
        digests: those in the comments, for each chain without a sum from before.
    """

    sums: dict[Name, int] = field(default_factory=dict)
    digests: dict[Name, list[str]] = field(default_factory=dict)


class TableAudit:
    """Remembers what the table of one family was like, in digests.

    Args:
        family: its family.
    """

    def __init__(self, family: Family) -> None:
        self._family = family
        self._handle: int | None = None
        self._chains: dict[Name, int] = {}
        self._sets: dict[Name, bytes] = {}

    def forget(self) -> None:
        """The table was made anew, by us: nothing is known of it."""
        self._handle = None
        self._chains, self._sets = {}, {}

    def touch(self, operations: Iterable[Operation]) -> None:
        """We are about to change this much of the table ourselves; to be called before each transaction."""
        if self._handle is None:
            return
        for operation in operations:
            match operation:
                case ReplaceTable():
                    self.forget()
                    return
                case AddRule():
                    self._chains.pop(operation.chain, None)
                case AddChain() | FlushChain() | RemoveChain():
                    self._chains.pop(operation.name, None)
                case FillSlots() | FreeSlots():
                    self._sets.pop(operation.map_name, None)
                case _:  # elements, and sets as a whole
                    self._sets.pop(getattr(operation, "container", "") or getattr(operation, "name", ""), None)

    def look(self, state: TableState, base: Base, suspects: frozenset[Name] = frozenset()) -> Difference | None:
        """Compare the table with what it should hold.

        The members of affinity sets come and go with packets, and are not looked at; nor are those of the sets that a
        changed template has beside ours.

        Args:
            state: what it should hold.
            base: its declared sets, maps and base chains.
            suspects: chains that somebody else is known to have changed; they are not trusted unless their rules are
                those of the last look.

        Returns:
            what differs, or that it can't be read; None: nothing does.
        """
        try:
            return netlink.undisturbed(self._look_once, state, base, suspects)
        except DumpInterruptedError:
            return Difference("it kept changing while it was read")
        except TableForeignError as error:
            return Difference(str(error))
        except (OSError, LookupError, ValueError, struct.error) as error:
            return Difference(f"it could not be read ({error})")

    def _look_once(self, state: TableState, base: Base, suspects: frozenset[Name]) -> Difference | None:
        with NftSocket(self._family) as sock:
            table = next((t for t in map(attributes, sock.dump(netlink.GET_TABLE, {})) if _is_ours(t)), None)
            if table is None:
                return Difference("the table is gone")
            if netlink.number(table.get(2, memoryview(b"\0"))) & readback.TABLE_DORMANT:
                return Difference("the table is dormant", dormant=True)
            handle = netlink.number(table.get(4, memoryview(b"\0")))
            if self._handle not in {None, handle}:
                self.forget()  # said once: from now on the suspects are those of the caller
                return Difference("the table was made anew", frozenset(state.mirror.chains))
            self._handle = handle
            return self._look_at_chains(sock, state, base, suspects) or self._look_at_sets(sock, state, base)

    # --- chains and rules ----------------------------------------------------------------------------------------

    def _look_at_chains(
        self, sock: NftSocket, state: TableState, base: Base, suspects: frozenset[Name]
    ) -> Difference | None:
        wanted = state.mirror.chains
        found = readback.dump_chains(sock)
        readback.check_hooks(found, base)
        rules = self._sum_up_rules(sock)
        reason, wrong = "", set()
        for name, digest in wanted.items():
            if name not in found.hooks:
                reason = reason or f"chain {name} is gone"
                continue
            has = rules.sums.get(name, 0)
            if name in self._chains:
                fits = self._chains[name] == has
            else:
                fits = name not in suspects and "".join(rules.digests.get(name, ())) == digest
            if fits:
                self._chains[name] = has
            else:
                wrong.add(name)
                reason = reason or f"the rules of chain {name} are others"
        if not reason and len(found.hooks) != len(wanted):
            reason = f"chain {next(name for name in found.hooks if name not in wanted)} is not ours"
        return Difference(reason, frozenset(wrong)) if reason else None

    def _sum_up_rules(self, sock: NftSocket) -> _Rules:
        rules, known = _Rules(), self._chains
        sums, digests = rules.sums, rules.digests
        for message in sock.dump(netlink.GET_RULE, {1: TABLE}):
            # Of a rule the kernel names table, chain and handle first; looking no further makes this fast.
            length, number = _ATTRIBUTE.unpack_from(message, _AFTER_TABLE)
            behind = _AFTER_TABLE + (length + 3 & ~3)
            if number != 2 or _ATTRIBUTE.unpack_from(message, behind) != (12, 3):
                msg = "a rule of an unknown form"
                raise ValueError(msg)
            name = str(message[_AFTER_TABLE + 4 : _AFTER_TABLE + length - 1], "utf-8", "replace")
            handle = bytes(message[behind + 4 : behind + 12])
            sums[name] = hash((sums.get(name, 0), handle))
            if name not in known:
                digests.setdefault(name, []).append(readback.rule_digest(attributes(message).get(7)))
        return rules

    # --- sets and their elements ---------------------------------------------------------------------------------

    def _look_at_sets(self, sock: NftSocket, state: TableState, base: Base) -> Difference | None:
        mirror = state.mirror
        headers = {header.name: header for header in readback.dump_sets(sock)}
        for name, header in headers.items():
            readback.check_set(header, self._family, base)
            if header.is_affinity:
                if mirror.affinity.get(name) != header.timeout:
                    return Difference(f"set {name} is not ours, or has another timeout")
            elif name not in mirror.containers:
                return Difference(f"{header.kind} {name} is not ours")
        for name in (*mirror.containers, *mirror.affinity):
            if name not in headers:
                return Difference(f"{mirror.kinds.get(name, 'set')} {name} is gone")
        judged = [name for name in mirror.containers if not base.has_extra(name)]
        unknown = [name for name in judged if name not in self._sets or self._sets[name] != _digest(sock, name)]
        expected = _Expected(state, self._family, unknown)
        for name in unknown:
            content = bytearray()
            digest = _digest(sock, name, content)
            if not expected.fits(name, content, headers[name].key_type):
                return Difference(f"the elements of {headers[name].kind} {name} are others")
            self._sets[name] = digest
        for name in self._sets.keys() - mirror.containers.keys():
            del self._sets[name]
        return None


def _is_ours(table: netlink.Attributes) -> bool:
    return netlink.text(table[1]) == TABLE


def _digest(sock: NftSocket, name: Name, content: bytearray | None = None) -> bytes:
    """A digest of the elements of a set as the kernel spells them; adds them to ``content``, if given.

    How they are spread over messages makes no difference.
    """
    digest = hashlib.blake2b(digest_size=16)
    for message in sock.dump(netlink.GET_ELEMENT, {1: TABLE, 2: name}):
        elements = attributes(message).get(3, memoryview(b""))
        digest.update(elements)
        if content is not None:
            content += elements
    return digest.digest()


class _Expected:
    """What some sets and maps should hold, in the form in which the kernel dumps it."""

    def __init__(self, state: TableState, family: Family, names: Iterable[Name]) -> None:
        self._mirror = state.mirror
        self._address = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
        self._slots: dict[Name, list[tuple[int, tuple[Target | str, ...]]]] = {
            name: [] for name in names if slot_map_number(name)
        }
        self._idle: dict[Name, set[int]] = {name: set() for name in self._slots}
        if self._slots:
            for use, values in state.slots_in_use():
                if use.map_name in self._slots:
                    self._slots[use.map_name].append((use.slots.offset, values))
            for use in state.slots_out_of_use():
                if use.map_name in self._idle:
                    self._idle[use.map_name].update(range(use.slots.offset, use.slots.end))

    def fits(self, name: Name, content: bytearray, key_type: int) -> bool:
        """Whether a set holds what it should, in any order."""
        if name in self._slots:
            return self._slots_fit(name, content)
        wanted, found = self._mirror.elements[name], 0
        for key, data in _elements(content, key_type):
            found += 1
            if key not in wanted:
                return False
            verdict = wanted[key]
            if data != (_verdict(verdict) if verdict is not None else b""):
                return False
        return found == len(wanted)

    def _slots_fit(self, name: Name, content: bytearray) -> bool:
        """The same for a map of slots; what those hold that are out of use makes no difference."""
        wanted = {
            struct.pack("=I", offset + index): self._value(value)
            for offset, values in self._slots[name]
            for index, value in enumerate(values)
        }
        found = _plain_pairs(content, next(iter(wanted.values()), b""))
        if found is None:
            found = dict(_pairs(content))
        idle = {struct.pack("=I", slot) for slot in self._idle[name]}
        if len(found) != len(wanted) + len(idle) or not idle <= found.keys():
            return False
        for slot in idle:
            del found[slot]
        return found == wanted

    def _value(self, value: Target | str) -> bytes:
        if isinstance(value, str):
            return _verdict(value)
        address = socket.inet_pton(self._address, value.address)
        return _ATTRIBUTE.pack(len(address) + 8, 1) + address + struct.pack(">HH", value.port, 0)


def _verdict(verdict: str) -> bytes:
    if verdict == DROP:
        return attribute_bytes(2, attribute_bytes(1, _DROP))
    return attribute_bytes(2, attribute_bytes(1, _GOTO) + attribute_bytes(2, verdict.encode() + b"\0"))


def _pairs(content: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """The key of each element, and its data as an attribute (none in sets)."""
    with memoryview(content) as view:
        for _, element in netlink.each_attribute(view):
            parts = attributes(element)
            yield bytes(parts[1][4:]), bytes(parts.get(2, b""))


@functools.lru_cache(maxsize=64)
def _address(raw: bytes) -> str:
    text = socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
    return canonical_address(text) if ":" in text and "." in text else text


# By nft's numbers of data types; within a key every field is padded to four bytes.
_FIELDS = {7: "4s", 8: "16s", 12: "B3x", 13: "H2x"}
_READERS: Mapping[int, Callable[[Any], str | int]] = {
    7: _address,
    8: _address,
    12: lambda raw: netlink.PROTOCOLS.get(raw, raw),
    13: lambda raw: raw,
}


def _elements(content: bytearray, key_type: int) -> Iterator[tuple[ElementKey, bytes]]:
    """Key of each element, and its data as an attribute (none in sets).

    Raises:
        LookupError: a field of the key is of a type that is not known here.
    """
    kinds: list[int] = []
    while key_type:
        kinds.insert(0, key_type & 0x3F)
        key_type >>= 6
    fields = struct.Struct(">" + "".join(_FIELDS[kind] for kind in kinds))
    readers = [_READERS[kind] for kind in kinds]
    plain = struct.Struct(f"=12s{fields.size}s")
    length = plain.size
    # An element that has a key and nothing else: three headers, and the value.
    head = _ATTRIBUTE.pack(length, 1) + _ATTRIBUTE.pack(length - 4, 1) + _ATTRIBUTE.pack(length - 8, 1)
    found: Iterable[tuple[bytes, bytes]]
    if len(content) % length == 0 and all(begin == head for begin, _ in plain.iter_unpack(content)):
        found = ((key, b"") for _, key in plain.iter_unpack(content))
    else:
        found = _pairs(content)
    for raw, data in found:
        key = fields.unpack(raw)
        yield tuple([read(value) for read, value in zip(readers, key, strict=True)]), data


def _plain_pairs(content: bytearray, sample: bytes) -> dict[bytes, bytes] | None:
    """Slots and data of all elements, if all of them have the size of one with the data ``sample`` and no more."""
    length = 20 + len(sample)
    if not sample or len(content) % length:
        return None
    # An element, its key, the key's value; its data.
    before = _ATTRIBUTE.pack(length, 1) + _ATTRIBUTE.pack(12, 1) + _ATTRIBUTE.pack(8, 1)
    between = _ATTRIBUTE.pack(4 + len(sample), 2)
    found: dict[bytes, bytes] = {}
    for head, slot, middle, data in struct.iter_unpack(f"=12s4s4s{len(sample)}s", content):
        if head != before or middle != between:
            return None
        found[slot] = data
    return found
