"""Reading one nftables table through netlink, without libnftables.

A listing through libnftables decodes every rule and element into text: seconds and a hundred megabytes at 10,000
Services. A dump hands the kernel's messages over as they are; only the few attributes that matter are looked at here.
"""

import contextlib
import errno
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import tenacity

from nodeproxy.kube.addresses import Family

# linux/netfilter/nfnetlink.h and nf_tables.h
NETFILTER = 12
"""The netlink protocol through which nftables is reached."""
NFTABLES = 10
"""The number of nftables among netfilter's subsystems."""
GET_TABLE, GET_CHAIN, GET_RULE, GET_SET, GET_ELEMENT = 1, 4, 7, 10, 13
_REQUEST, _DUMP = 0x1, 0x300
_DONE, _ERROR = 3, 2
_DUMP_INTERRUPTED = 0x10
_BUFFER = 1 << 16  # the kernel hands over 32 KiB at most; more would be fresh pages each time

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_MESSAGE_OFFSET = _HEADER.size + 4  # behind the netlink header stands nfgenmsg, of four bytes

_SOL_NETLINK, _CAP_ACK = 270, 10  # linux/socket.h, linux/netlink.h
_T = TypeVar("_T")

_FIRST_PORT, _LAST_PORT = 1 << 30, 1 << 31  # above all process ids, below what the kernel takes instead
_PORT_ATTEMPTS = 5

_FAMILIES = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}

PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}
"""Numbers of the IP protocols that Services have (linux/in.h)."""

Attributes = dict[int, memoryview]


class DumpInterruptedError(Exception):
    """The table changed while it was being read; what was read may be inconsistent."""


def undisturbed(read: Callable[..., _T], *arguments: Any) -> _T:
    """What ``read`` returns, once nothing changes while it dumps; it is called a few times, milliseconds apart.

    Raises:
        DumpInterruptedError: something has changed each time.
    """
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(DumpInterruptedError),
        stop=tenacity.stop_after_attempt(5),
        wait=tenacity.wait_random_exponential(multiplier=0.01, max=0.2),
        reraise=True,
    )
    return retrying(read, *arguments)


class NftSocket:
    """A netlink socket for reading nftables objects of one family, in the namespace where it is made."""

    def __init__(self, family: Family) -> None:
        self._family = _FAMILIES[family]
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETFILTER)
        self._socket.bind((0, 0))
        self._socket.settimeout(10.0)
        self._sequence = 0

    def __enter__(self) -> "NftSocket":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def dump(self, kind: int, names: dict[int, str]) -> Iterator[memoryview]:
        """The attributes of each object of ``kind``, undecoded.

        Args:
            kind: one of the GET_… constants.
            names: string attributes of the request: the table's name, and the set's.

        Raises:
            DumpInterruptedError: the objects changed meanwhile.
            OSError: the kernel refused; ENOENT: no such table or set.
        """
        self._sequence += 1
        body = struct.pack("=BBH", self._family, 0, 0)
        for attribute, name in names.items():
            body += attribute_bytes(attribute, name.encode() + b"\0")
        flags = _REQUEST | _DUMP
        header = _HEADER.pack(_HEADER.size + len(body), NFTABLES << 8 | kind, flags, self._sequence, 0)
        self._socket.send(header + body)
        interrupted = 0
        while True:
            data = memoryview(self._socket.recv(_BUFFER))
            offset = 0
            while offset + _HEADER.size <= len(data):
                length, message, flags, sequence, _ = _HEADER.unpack_from(data, offset)
                if length < _HEADER.size:
                    raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
                if sequence == self._sequence:
                    interrupted |= flags & _DUMP_INTERRUPTED
                    if message in {_DONE, _ERROR}:
                        _raise_error(data[offset:])
                        if interrupted:  # said only now, so that nothing of this dump is left in the socket
                            raise DumpInterruptedError
                        return
                    yield data[offset + _MESSAGE_OFFSET : offset + length]
                offset += (length + 3) & ~3


def _raise_error(message: memoryview) -> None:
    if len(message) >= _HEADER.size + 4:
        (code,) = struct.unpack_from("=i", message, _HEADER.size)
        if code:
            raise OSError(-code, os.strerror(-code))


def attribute_bytes(number: int, value: bytes) -> bytes:
    """One netlink attribute, padded."""
    return _ATTRIBUTE.pack(4 + len(value), number) + value + bytes(-len(value) % 4)


def attributes(data: memoryview) -> Attributes:
    """The attributes of a message, or of a nested attribute, by number; of equals the last."""
    # Not by way of each_attribute, which is slower by half: a table of 10,000 Services has half a million of these.
    found: Attributes = {}
    offset, end = 0, len(data)
    while offset + 4 <= end:
        length, number = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4:
            break
        found[number & 0x3FFF] = data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return found


def each_attribute(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and value of each attribute, in order."""
    offset, end = 0, len(data)
    while offset + 4 <= end:
        length, number = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4:
            return
        yield number & 0x3FFF, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def text(value: memoryview) -> str:
    """A string attribute."""
    return bytes(value).rstrip(b"\0").decode(errors="replace")


def number(value: memoryview) -> int:
    """An unsigned integer in network byte order, as nftables has them."""
    return int.from_bytes(value, "big")


def each_message(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Each message of a datagram: length of what follows its header, type, port, and the offset of what follows."""
    start = 0
    while start + _HEADER.size <= len(data):
        length, message, _, _, port = _HEADER.unpack_from(data, start)
        if length < _HEADER.size:
            return
        yield length - _HEADER.size, message, port, start + _HEADER.size
        start += (length + 3) & ~3


def netfilter_sockets() -> dict[int, str]:
    """This process's own netlink sockets for netfilter: what each descriptor leads to, as ``socket:[12345]``."""
    found: dict[int, str] = {}
    for link in Path("/proc/self/fd").iterdir():
        descriptor = int(link.name)
        try:
            target = str(link.readlink())
            if target.startswith("socket:") and _is_netfilter(descriptor):
                found[descriptor] = target
        except OSError:  # closed meanwhile, by another thread
            continue
    return found


def adopt_socket(descriptor: int) -> int:
    """Prepare a netlink socket that a library opened; returns its port, and gives it one if it has none yet.

    Of errors the kernel shall not send the message back that caused them (NETLINK_CAP_ACK): a message of elements has
    64 KiB, and a few that are refused would overflow the receive buffer, so that nobody learns what was refused.

    Ports that the kernel chooses are process ids, of whichever process id namespace, or negative; ours is neither, so
    that nobody else ever gets it once this socket is closed.

    Raises:
        OSError: there is no such socket.
    """
    sock = socket.socket(fileno=os.dup(descriptor))
    with sock:
        sock.setsockopt(_SOL_NETLINK, _CAP_ACK, 1)
        port = int(sock.getsockname()[0])
        for _ in range(_PORT_ATTEMPTS):
            if port:
                break
            wanted = random.randrange(_FIRST_PORT, _LAST_PORT)  # noqa: S311  nothing secret
            with contextlib.suppress(OSError):  # taken
                sock.bind((wanted, 0))
            port = int(sock.getsockname()[0])
        return port


def _is_netfilter(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        return sock.family == socket.AF_NETLINK and sock.proto == NETFILTER
