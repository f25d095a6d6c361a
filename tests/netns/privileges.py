"""What it takes to make network namespaces: root, or a user namespace of one's own."""

import ctypes
import os
from pathlib import Path

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)


class PrivilegeError(RuntimeError):
    """Network namespaces cannot be made here; the message says why."""


def unshare(flags: int) -> None:
    """Call unshare(2) for the calling thread.

    Raises:
        OSError: the kernel refused.
    """
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare({flags:#x}): {os.strerror(number)}")


def setns(fd: int) -> None:
    """Move the calling thread into the network namespace that ``fd`` stands for (os.setns exists from Python 3.12).

    Raises:
        OSError: the kernel refused.
    """
    if libc.setns(fd, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def ensure() -> None:
    """Make sure that this process may create network namespaces; call it before any thread is started.

    As root nothing happens: a user namespace would limit the size of netlink messages. Anybody else becomes root of
    a user namespace of their own, like ``unshare -Urn`` does; files are still accessed as before.

    Raises:
        PrivilegeError: user namespaces are disabled, or the process has threads already.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        return
    try:
        unshare(CLONE_NEWUSER | CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    except OSError as error:
        msg = f"not root, and no user namespace can be made: {error}"
        raise PrivilegeError(msg) from error
