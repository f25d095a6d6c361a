"""An echo request, and what comes back."""

import contextlib
import errno
import socket
import struct
from typing import Literal

from netns.namespaces import Namespace

_PATIENCE = 3.0  # seconds; every ping here is answered in some way
_FATES: dict[int, Literal["rejected", "unreachable"]] = {
    errno.ECONNREFUSED: "rejected",
    errno.ENETUNREACH: "unreachable",
    errno.EHOSTUNREACH: "unreachable",
    errno.EACCES: "unreachable",
}


def echo(namespace: Namespace, address: str) -> Literal["answered", "rejected", "unreachable", "dropped"]:
    """Ping an address once, from a namespace.

    ``rejected`` is what a rule's ``reject`` sends (port unreachable), ``unreachable`` any other ICMP error.
    """
    namespace.sysctl({"ipv4/ping_group_range": "0 2147483647"})  # for both families
    v6 = ":" in address
    family, protocol = (socket.AF_INET6, socket.IPPROTO_ICMPV6) if v6 else (socket.AF_INET, socket.IPPROTO_ICMP)
    with namespace.enter():
        sock = socket.socket(family, socket.SOCK_DGRAM, protocol)
    with contextlib.closing(sock):
        sock.settimeout(_PATIENCE)
        level, option = (socket.IPPROTO_IPV6, 25) if v6 else (socket.IPPROTO_IP, 11)  # IPV6_RECVERR, IP_RECVERR
        sock.setsockopt(level, option, 1)
        try:
            sock.connect((address, 0))
            sock.send(struct.pack("!BBHHH", 128 if v6 else 8, 0, 0, 0, 1) + b"who are you?")
            sock.recv(1500)
        except TimeoutError:
            return "dropped"
        except OSError as error:
            return _FATES[error.errno or 0]
    return "answered"
