"""Reads what the kernel tells about a ruleset, until SIGTERM, then writes it to standard output. For takeover_events.

A process of its own: in a user namespace the socket's buffer can't be made large, and among a test's busy threads a
reader comes too late now and then.
"""

import contextlib
import signal
import socket
import struct
import sys

_NETLINK_NETFILTER, _SOL_NETLINK, _ADD_MEMBERSHIP, _NFNLGRP_NFTABLES = 12, 270, 1, 7
_SO_RCVBUFFORCE = 33
_BUFFER = 256 << 20
LENGTH = struct.Struct("=i")
"""Before each message: its length; or the negative number of the error that ended all reading, without a message."""


def main() -> None:
    """Read and write; a line says when it has begun."""
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    reader = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)  # as far as net.core.rmem_max lets
    with contextlib.suppress(PermissionError):
        reader.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
    reader.bind((0, 0))
    reader.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _NFNLGRP_NFTABLES)
    reader.settimeout(0.2)
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    chunks = []
    failed = 0
    while not failed:
        try:
            chunks.append(reader.recv(1 << 20))
        except TimeoutError:  # all that had been written when the end was asked for has been read
            if stopping:
                break
        except OSError as error:
            failed = error.errno or 0
    for chunk in chunks:
        sys.stdout.buffer.write(LENGTH.pack(len(chunk)) + chunk)
    if failed:
        sys.stdout.buffer.write(LENGTH.pack(-failed))


if __name__ == "__main__":
    main()
