"""Network namespaces without names or mounts: each is a file descriptor, and gone with the process that holds it."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from netns.privileges import CLONE_NEWNET, PrivilegeError, setns, unshare

THREAD_NS = "/proc/thread-self/ns/net"


class CommandError(RuntimeError):
    """A command in a namespace failed; the message has its words and what it said."""


class Namespace:
    """A network namespace.

    Attributes:
        name: for messages only; the kernel does not know it.
        fd: open descriptor of it. The namespace lives as long as a descriptor, a process or a socket in it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        original = os.open(THREAD_NS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            try:
                unshare(CLONE_NEWNET)
            except OSError as error:
                msg = f"no network namespace can be made ({error}): root or a user namespace is needed"
                raise PrivilegeError(msg) from error
            self.fd = os.open(THREAD_NS, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            setns(original)
            os.close(original)

    def __repr__(self) -> str:
        return f"Namespace({self.name!r})"

    @property
    def path(self) -> str:
        """A path that other processes can open, for ``nsenter --net=`` and ``ip link … netns``."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Be in the namespace. Only the calling thread is; sockets and processes it makes meanwhile stay there."""
        original = os.open(THREAD_NS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            setns(self.fd)
            try:
                yield
            finally:
                setns(original)
        finally:
            os.close(original)

    def run(self, *argv: str, text: str | None = None, timeout: float = 20) -> str:
        """Run a command in the namespace to its end and return its output.

        Args:
            argv: the command's words.
            text: its standard input.
            timeout: seconds it may take.

        Raises:
            CommandError: its exit code was not 0.
            subprocess.TimeoutExpired: it took too long.
        """
        with self.enter():
            done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode != 0:
            msg = f"{self.name}: {' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip()}"
            raise CommandError(msg)
        return done.stdout

    def start(
        self, *argv: str, stdout: int | IO[str] = subprocess.DEVNULL, stderr: int | IO[str] = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        """Start a command in the namespace. Whoever starts it ends it; if this process dies, the command does too."""
        # The parent may die before the signal is asked for: then nobody would send it, so look whether it still lives.
        guarded = 'test "$PPID" = "$0" && exec "$@"'
        words = ("setpriv", "--pdeathsig", "KILL", "sh", "-c", guarded, str(os.getpid()), *argv)
        with self.enter():
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True, bufsize=1)

    def ip(self, lines: Sequence[str]) -> None:
        """Run lines of the ``ip`` command in one process (``ip -batch``); each line lacks the leading ``ip``.

        Raises:
            CommandError: a line was refused; the message names its number.
        """
        self.run("ip", "-batch", "-", text="\n".join(lines) + "\n")

    def nft(self, text: str) -> None:
        """Load nft text.

        Raises:
            CommandError: it was refused.
        """
        self.run("nft", "-f", "-", text=text)

    def sysctl(self, settings: dict[str, str | int], *, optional: bool = False) -> None:
        """Write settings below ``/proc/sys/net``, such as ``{"ipv4/ip_forward": 1}``.

        Args:
            settings: path to value.
            optional: what the kernel does not have, or does not let a child namespace set, is left as it is.
        """
        with self.enter():
            for key, value in settings.items():
                with contextlib.suppress(*((OSError,) if optional else ())):
                    Path("/proc/sys/net", key).write_text(str(value))

    def close(self) -> None:
        """Let go of it. Does nothing the second time."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
