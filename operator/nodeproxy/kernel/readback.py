"""What a table in the kernel holds, read back into the form that it is planned in.

Names, elements and the digests in the comments of rules are read; what a rule does is not decoded, except for the slots
that a balancing rule draws from.
"""

import contextlib
import errno
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from nodeproxy.kernel import netlink
from nodeproxy.kernel.errors import PermissionDeniedError, ReadBackError
from nodeproxy.kernel.netlink import Attributes, DumpInterruptedError, NftSocket, attributes, each_attribute
from nodeproxy.kernel.slot_dump import DumpedSlots, verdict_of
from nodeproxy.kube.addresses import Family, canonical_address
from nodeproxy.ruleset.mirror import FOREIGN, Found, Mirror, SlotUse, slot_map_number
from nodeproxy.ruleset.names import AFFINITY, ENDPOINT_CHAIN_MAP, is_dynamic
from nodeproxy.ruleset.operations import Client
from nodeproxy.ruleset.render import TABLE, Base, Container
from nodeproxy.ruleset.rules import ElementKey
from nodeproxy.ruleset.slots import MAP_SLOTS, SlotRange

_DIGEST = re.compile(rb"(?:^| )#([a-z2-7]{8})$")
_HOOK = re.compile(r"^type (\w+) hook (\w+) priority (-?\d+)$")
_HOOK_NUMBERS = {"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4}

# nft's numbers of data types; concatenations take six bits each.
_TYPES = {"ipv4_addr": 7, "ipv6_addr": 8, "inet_proto": 12, "inet_service": 13}
_LENGTHS = {7: 4, 8: 16, 12: 1, 13: 2}
_VERDICT_TYPE = 0xFFFFFF00
TABLE_DORMANT = 0x1
"""The flag of a table whose rules are switched off (NFT_TABLE_F_DORMANT)."""
_ACCEPT = 1
# What nft takes for a name, keywords aside; programs that do not go through its language may use any other.
_SPELLABLE = re.compile(r"[A-Za-z_.][\w./\\-]*", re.ASCII)
_MOST_SLOTS = 1 << 20  # of a map: account is kept of each, and no Service has so many endpoints
_KEY, _EXPIRES = 1, 5  # attributes of an element: its key, the milliseconds it has left
_SET_ANONYMOUS, _SET_MAP, _SET_TIMEOUT, _SET_DYNAMIC = 0x1, 0x8, 0x10, 0x20
_SET_OTHERWISE = 0x2 | 0x4 | _SET_TIMEOUT | _SET_DYNAMIC  # also constant, and interval
_TYPE_INTEGER = 4  # what `typeof numgen` comes to


class TableForeignError(Exception):
    """The table was not left by this program, or by one that declared it otherwise; the message says how one sees.

    Attributes:
        clients: the clients in its affinity sets, by set.
    """

    clients: Mapping[str, Sequence[Client]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SetHeader:
    """The declaration of a set or map, as the kernel has it; ``timeout`` in seconds."""

    name: str
    flags: int
    key_type: int
    data_type: int
    timeout: int
    size: int

    @property
    def is_affinity(self) -> bool:
        """Whether it holds the clients of an endpoint."""
        return self.name.startswith(AFFINITY) and is_dynamic(self.name)

    @property
    def kind(self) -> str:
        """``set`` or ``map``."""
        return "map" if self.flags & _SET_MAP else "set"


@dataclass(slots=True)
class Chains:
    """The chains of a table.

    Attributes:
        hooks: type, number of the hook and priority of each base chain, None for the others.
        policies: the policy of each base chain.
    """

    hooks: dict[str, tuple[str, int, int] | None] = field(default_factory=dict)
    policies: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Raw:
    """A table as dumped, but for the elements of its sets, with as little decoding as serves."""

    flags: int = 0
    chains: Chains = field(default_factory=Chains)
    digests: dict[str, list[str]] = field(default_factory=dict)
    uses: dict[str, SlotUse] = field(default_factory=dict)
    sets: list[SetHeader] = field(default_factory=list)


def read_back(family: Family, base: Base) -> Found | None:
    """Read the table of one family.

    Args:
        family: its family.
        base: the sets, maps and base chains it should have, to compare their declarations.

    Returns:
        what it holds; None: there is no such table.

    Raises:
        TableForeignError: another program made it, or its declarations can't be brought to ``base``'s.
        ReadBackError: it could not be read, or kept changing.
        PermissionDeniedError: CAP_NET_ADMIN is missing.
    """
    try:
        return netlink.undisturbed(_read_once, family, base)
    except DumpInterruptedError:
        msg = "the table kept changing while it was read"
        raise ReadBackError(msg) from None
    except OSError as error:
        if error.errno == errno.EPERM:
            msg = "reading nftables: operation not permitted (CAP_NET_ADMIN is needed)"
            raise PermissionDeniedError(msg) from error
        msg = f"reading the table {TABLE}: {error.strerror or error}"
        raise ReadBackError(msg) from error


def _read_once(family: Family, base: Base) -> Found | None:
    with NftSocket(family) as sock:
        raw = _dump(sock)
        if raw is None:
            return None
        try:
            return _interpret(raw, sock, family, base)
        except TableForeignError as foreign:
            foreign.clients = _clients(raw.sets, family)
            raise
        except (LookupError, ValueError) as error:
            # Something that this program never writes, such as an element that matches everything.
            unreadable = TableForeignError(f"it holds something unreadable ({type(error).__name__}: {error})")
            unreadable.clients = _clients(raw.sets, family)
            raise unreadable from error


def _dump(sock: NftSocket) -> _Raw | None:
    raw = _Raw()
    tables = {netlink.text(table[1]): table for table in map(attributes, sock.dump(netlink.GET_TABLE, {}))}
    if TABLE not in tables:
        return None
    raw.flags = netlink.number(tables[TABLE].get(2, memoryview(b"\0")))
    raw.chains = dump_chains(sock)
    for rule in map(attributes, sock.dump(netlink.GET_RULE, {1: TABLE})):
        _read_rule(rule, raw)
    raw.sets = [*dump_sets(sock)]
    return raw


def dump_chains(sock: NftSocket) -> Chains:
    """The chains of our table.

    Raises:
        DumpInterruptedError: the ruleset changed meanwhile.
        OSError: the kernel refused.
    """
    chains = Chains()
    for message in sock.dump(netlink.GET_CHAIN, {1: TABLE}):
        chain = attributes(message)
        name = netlink.text(chain[3])
        if 4 in chain and netlink.text(chain[1]) == TABLE:
            chains.policies[name] = netlink.number(chain.get(5, memoryview(b"\1")))
        if netlink.text(chain[1]) == TABLE:
            chains.hooks[name] = _hook(chain)
    return chains


def dump_sets(sock: NftSocket) -> Iterator[SetHeader]:
    """The declarations of the sets and maps in our table that have a name of their own.

    Raises:
        DumpInterruptedError: the ruleset changed meanwhile.
        OSError: the kernel refused.
    """
    for found in map(attributes, sock.dump(netlink.GET_SET, {1: TABLE})):
        header = _set_header(found)
        if not header.flags & _SET_ANONYMOUS:
            yield header


def affinity_clients(family: Family) -> Mapping[str, Sequence[Client]]:
    """The clients in all affinity sets, with what is left of their time, by set; what can't be read is left out."""
    with contextlib.suppress(OSError, LookupError, ValueError, DumpInterruptedError), NftSocket(family) as sock:
        return _clients([*dump_sets(sock)], family)
    return {}


def _clients(sets: Iterable[SetHeader], family: Family) -> Mapping[str, Sequence[Client]]:
    """The clients in all affinity sets, with what is left of their time; what can't be read is left out."""
    address = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    wanted = _TYPES["ipv4_addr" if family is Family.IPV4 else "ipv6_addr"]
    found: dict[str, Sequence[Client]] = {}
    for header in sets:
        if not header.is_affinity or header.key_type != wanted:
            continue
        # A set at a time, each with a socket of its own: none of them must cost the others their clients.
        with contextlib.suppress(OSError, LookupError, ValueError, DumpInterruptedError), NftSocket(family) as sock:
            found[header.name] = [
                _client(element, address)
                for element in _dump_elements(sock, header.name)
                if {_KEY, _EXPIRES} <= element.keys()
            ]
    return found


def _client(element: Attributes, address: socket.AddressFamily) -> Client:
    raw = attributes(element[_KEY])[1]
    return Client(socket.inet_ntop(address, bytes(raw)), netlink.number(element[_EXPIRES]) // 1000)


def _dump_elements(sock: NftSocket, name: str) -> Iterator[Attributes]:
    for message in _element_lists(sock, name):
        for _, element in each_attribute(message):
            yield attributes(element)


def _element_lists(sock: NftSocket, name: str) -> Iterator[memoryview]:
    for message in sock.dump(netlink.GET_ELEMENT, {1: TABLE, 2: name}):
        yield attributes(message).get(3, memoryview(b""))


def _hook(chain: Attributes) -> tuple[str, int, int] | None:
    """Type, hook number and priority of a base chain."""
    if 4 not in chain:
        return None
    hook = attributes(chain[4])
    priority = int.from_bytes(hook[2], "big", signed=True)
    return netlink.text(chain[7]), netlink.number(hook[1]), priority


def _read_rule(rule: Attributes, raw: _Raw) -> None:
    if netlink.text(rule[1]) != TABLE:
        return
    chain = netlink.text(rule[2])
    raw.digests.setdefault(chain, []).append(rule_digest(rule.get(7)))
    if is_dynamic(chain) and (use := _slot_use(rule)) is not None:
        raw.uses[chain] = use


def rule_digest(user_data: memoryview | None) -> str:
    """The digest at the end of a rule's comment, which is the first of its user data (type, length, text)."""
    if user_data is None or len(user_data) < 2 or user_data[0] != 0:
        return FOREIGN
    comment = bytes(user_data[2 : 2 + user_data[1]]).rstrip(b"\0")
    found = _DIGEST.search(comment)
    return found[1].decode() if found else FOREIGN


def _slot_use(rule: Attributes) -> SlotUse | None:
    """The slots that a rule draws from, if its expressions draw a number and look it up in a slot map."""
    size = offset = 0
    map_name = ""
    for _, item in each_attribute(rule.get(4, memoryview(b""))):
        expression = attributes(item)
        name = netlink.text(expression[1])
        if name == "numgen":
            numgen = attributes(expression[2])
            size, offset = netlink.number(numgen[2]), netlink.number(numgen.get(4, memoryview(b"\0")))
        elif name == "lookup" and size:
            map_name = netlink.text(attributes(expression[2])[1])
    known = slot_map_number(map_name)
    return SlotUse(known[0], SlotRange(known[1], offset, size)) if known and size else None


def _set_header(found: Attributes) -> SetHeader:
    zero = memoryview(b"\0")
    size = attributes(found[9]).get(1, zero) if 9 in found else zero
    return SetHeader(
        name=netlink.text(found[2]),
        flags=netlink.number(found.get(3, zero)),
        key_type=netlink.number(found.get(4, zero)),
        data_type=netlink.number(found.get(6, zero)),
        timeout=netlink.number(found.get(11, zero)) // 1000,
        size=netlink.number(size),
    )


def _interpret(raw: _Raw, sock: NftSocket, family: Family, base: Base) -> Found:
    every = [digest for digests in raw.digests.values() for digest in digests]
    if every and all(digest == FOREIGN for digest in every):
        msg = "none of its rules is ours"
        raise TableForeignError(msg)
    mirror = Mirror()
    if raw.flags & TABLE_DORMANT:
        msg = "it is dormant"
        raise TableForeignError(msg)
    _check_names((*raw.chains.hooks, *(header.name for header in raw.sets)))
    check_hooks(raw.chains, base)
    for name, hook in raw.chains.hooks.items():
        mirror.chains[name] = "".join(raw.digests.get(name, ()))
        if hook:
            mirror.hooks[name] = f"{hook[0]} {hook[1]} {hook[2]}"
    slots = DumpedSlots(family, FOREIGN)
    found = Found(mirror, raw.uses, slots)
    declared = {container.name: container for container in base.containers}
    names = {name: name for name in mirror.chains}
    for header in raw.sets:
        mirror.kinds[header.name] = header.kind
        check_set(header, family, base)
        if header.is_affinity:
            mirror.affinity[header.name] = header.timeout
        elif slot_map_number(header.name):
            mirror.containers[header.name] = ""
            end = slots.add(header.name, _element_lists(sock, header.name), names)
            found.capacities[header.name] = min(header.size or max(MAP_SLOTS, end), _MOST_SLOTS)
        else:
            container = declared.get(header.name)
            mirror.containers[header.name] = container.body if container else ""
            dumped = () if base.has_extra(header.name) else _dump_elements(sock, header.name)
            mirror.elements[header.name] = dict(_elements(dumped, header, names))
    return found


def _check_names(names: Iterable[str]) -> None:
    """What nft can't spell can't be emptied or deleted by name, and must not get into a transaction.

    Raises:
        TableForeignError: there is such a name.
    """
    for name in names:
        if not _SPELLABLE.fullmatch(name):
            msg = f"it holds something with a name that nft can't spell ({name!r})"
            raise TableForeignError(msg)


def check_hooks(chains: Chains, base: Base) -> None:
    """What a base chain is hooked to can't be changed, so it has to be right.

    Raises:
        TableForeignError: it is not.
    """
    for chain in base.chains:
        if chain.name not in chains.hooks:
            continue
        declared = _HOOK.match(chain.hook)
        found = chains.hooks[chain.name]
        if declared:
            wanted = (declared[1], _HOOK_NUMBERS.get(declared[2], -1), int(declared[3]))
            fits = found == wanted and chains.policies[chain.name] == _ACCEPT
        else:  # no hook, or, from a changed template, one that says more
            fits = bool(found) == bool(chain.hook)
        if not fits:
            msg = f"chain {chain.name} is hooked otherwise"
            raise TableForeignError(msg)
    declared_names = {chain.name for chain in base.chains}
    for name, hook in chains.hooks.items():
        if hook is not None and name not in declared_names:
            msg = f"base chain {name} is not ours"
            raise TableForeignError(msg)


def check_set(header: SetHeader, family: Family, base: Base) -> None:
    """What a set or map is declared as can't be changed, so it has to be right.

    Raises:
        TableForeignError: it is not.
    """
    if header.is_affinity:
        if not (header.flags & _SET_TIMEOUT and header.flags & _SET_DYNAMIC):
            msg = f"set {header.name} is declared otherwise"
            raise TableForeignError(msg)
    elif slot_map_number(header.name):
        _check_slot_map(header, family)
    else:
        container = next((container for container in base.containers if container.name == header.name), None)
        if container is not None:
            _check_declaration(container, header)


def _check_declaration(container: Container, header: SetHeader) -> None:
    """The types of a set or map can't be changed, so they have to be right."""
    declared = next((line.removeprefix("type ") for line in container.lines if line.startswith("type ")), None)
    if declared is None:
        return
    key, _, data = declared.partition(" : ")
    key_type = 0
    for word in key.split(" . "):
        if word not in _TYPES:
            return  # a changed template's own type: not for us to judge
        key_type = key_type << 6 | _TYPES[word]
    is_map = bool(header.flags & _SET_MAP)
    data_fits = header.data_type == _VERDICT_TYPE if data == "verdict" else True
    # In an interval map an element is two to the kernel, in one with a size not all may fit, and so on.
    says_more = any(line.startswith(("flags ", "timeout ", "size ")) for line in container.lines)
    extras_fit = says_more or not (header.flags & _SET_OTHERWISE or header.size)
    if header.key_type != key_type or is_map != (container.kind == "map") or not (data_fits and extras_fit):
        msg = f"{container.kind} {container.name} is declared otherwise"
        raise TableForeignError(msg)


def _check_slot_map(header: SetHeader, family: Family) -> None:
    """A map that has the name of a slot map may be drawn from, and filled, so it has to be one."""
    if header.name.startswith(ENDPOINT_CHAIN_MAP):
        data_type = _VERDICT_TYPE
    else:
        data_type = _TYPES["ipv4_addr" if family is Family.IPV4 else "ipv6_addr"] << 6 | _TYPES["inet_service"]
    is_plain_map = header.flags & (_SET_MAP | _SET_OTHERWISE) == _SET_MAP
    if not is_plain_map or header.key_type != _TYPE_INTEGER or header.data_type != data_type:
        msg = f"slot map {header.name} is declared otherwise"
        raise TableForeignError(msg)


def _elements(
    elements: Iterable[Attributes], header: SetHeader, names: Mapping[str, str]
) -> Iterator[tuple[ElementKey, str | None]]:
    readers = _readers(header.key_type)
    for element in elements:
        key_bytes = bytes(attributes(element[_KEY]).get(1, b""))
        verdict = verdict_of(attributes(element[2]), FOREIGN) if 2 in element else None
        key: list[str | int] = []
        offset = 0
        for length, read in readers:
            key.append(read(key_bytes[offset : offset + length]))
            offset += (length + 3) & ~3
        yield tuple(key), names.get(verdict, verdict) if verdict else verdict


def _readers(key_type: int) -> list[tuple[int, Callable[[bytes], str | int]]]:
    """Length and reader of each field of a key, first field first."""
    reading: dict[int, Callable[[bytes], str | int]] = {
        7: lambda raw: socket.inet_ntop(socket.AF_INET, raw),
        8: lambda raw: canonical_address(socket.inet_ntop(socket.AF_INET6, raw)),
        12: lambda raw: netlink.PROTOCOLS.get(raw[0], raw[0]),
        13: lambda raw: int.from_bytes(raw, "big"),
    }
    readers: list[tuple[int, Callable[[bytes], str | int]]] = []
    while key_type:
        kind = key_type & 0x3F
        if kind not in reading:
            return []
        readers.insert(0, (_LENGTHS[kind], reading[kind]))
        key_type >>= 6
    return readers
