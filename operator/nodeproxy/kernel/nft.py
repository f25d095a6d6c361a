"""The only module that talks to libnftables.

A context must not be used by two threads (it crashes), and is replaced after an error, since one failed command can
spoil those after it. libnftables releases the interpreter's lock while it works.
"""

import contextlib
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tenacity

from nodeproxy.kernel.errors import (
    BusyError,
    OutcomeUnknownError,
    PermissionDeniedError,
    Refusal,
    TooLongError,
    TransactionError,
    UnsupportedError,
)
from nodeproxy.kernel.netlink import adopt_socket, netfilter_sockets

_ERROR_AT = re.compile(r"^\S*?:(\d+):\d+(?:-\d+)?: Error: (.*)$", re.MULTILINE)
_OWNER = re.compile(r" # (\S+)\s*$")
_ANY_ERROR = re.compile(r"(?:^|: )Error: (.*)$", re.MULTILINE)

_KINDS: tuple[tuple[str, type[TransactionError]], ...] = (
    ("Message too long", TooLongError),
    ("No buffer space available", OutcomeUnknownError),
    ("Device or resource busy", BusyError),
    ("Interrupted system call", BusyError),
    ("Resource temporarily unavailable", BusyError),
)
_ATTEMPTS = 3  # after the first one
_SHORT = 10_000  # characters; what is longer is not checked again for an error that takes long and names nobody

SYNTAX_ERROR = "syntax error"
"""How a reason begins when nft could not read a statement; it may be due to the statement before."""

VALIDATION_ERRORS = ("Operation not supported", "Too many links", "Too many levels of symbolic links")
"""How a reason ends when the table as a whole would not be valid (``nft_table_validate`` in the kernel).

The kernel then looks at all of the table after each statement: that takes long, and refuses all that come after the one
at fault as well.
"""

_CAP_NET_ADMIN = 12  # linux/capability.h

_NEEDED = ("cmd", "cmd_from_file", "set_dry_run", "set_json_output")  # of the module's class; copies on PyPI lack some


class Nft:
    """A libnftables context, bound to the network namespace and the thread of its first use."""

    def __init__(self) -> None:
        self._context: Any = None
        self._socket = -1  # the context's descriptor
        self._told = 0  # the inode of the socket whose port has been told
        self._heard: Callable[[int], None] = lambda _: None
        self._thread: int | None = None
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(BusyError),
            stop=tenacity.stop_after_attempt(_ATTEMPTS),
            wait=tenacity.wait_random_exponential(multiplier=0.005, max=0.1),
            reraise=True,
        )

    def run(self, text: str) -> None:
        """Apply a transaction: all of it or nothing.

        What may pass is tried a few times, milliseconds apart.

        Raises:
            TransactionError: it was refused; the subclass says whether that may pass.
            PermissionDeniedError: CAP_NET_ADMIN is missing.
        """
        try:
            try:
                self._run_once(text)
            except BusyError:
                self._retrying(self._run_once, text)
        except BusyError as error:
            # Only now: to find out who is at fault takes another run.
            self._check_as_file(text, fallback=error.reason)
            self._run_once(text)  # it has just passed

    def check(self, text: str) -> None:
        """Have nft and the kernel check a transaction without applying it.

        Raises:
            TransactionError: it would be refused; names the statements and their owners where nft says which. The
                subclass says whether that may pass.
            PermissionDeniedError: CAP_NET_ADMIN is missing.
        """
        self._check_as_file(text, fallback="refused")

    def rest(self) -> None:
        """Give back what libnftables remembers of the kernel; to be called when nothing is waiting.

        1.0.6 keeps all chains that it has read until the next transaction, which first throws them away and reads them
        again: a quarter of its time at 10,000 chains, and 1.5 kB a chain in between.
        """
        context = self._context
        if context is None:
            return
        try:
            context.set_dry_run(True)
            context.cmd("")  # after a dry run it keeps nothing
        finally:
            context.set_dry_run(False)

    def version(self) -> str:
        """The version that libnftables states of itself, as ``1.0.6``; empty if it does not say."""
        context = self._ours()
        context.set_json_output(True)
        try:
            # Something that is rare, and for which libnftables reads no sets: 1.0.6 crashes on some of other programs.
            code, output, _ = context.cmd("list flowtables ip")
        finally:
            context.set_json_output(False)
        if code != 0:
            self._context = None
        found = re.search(r'"version": "([^"]+)"', output) if code == 0 else None
        return found[1] if found else ""

    def follow_port(self, heard: Callable[[int], None]) -> None:
        """Have ``heard`` told the netlink port through which transactions go: now, and before another one is used."""
        self._heard, self._told = heard, 0
        self._tell_port()

    def _tell_port(self) -> None:
        if self._context is None or self._socket < 0:
            return
        with contextlib.suppress(OSError):  # libnftables may close a socket and open another
            inode = os.fstat(self._socket).st_ino
            if inode != self._told:
                self._heard(adopt_socket(self._socket))
                self._told = inode

    def _ours(self) -> Any:
        current = threading.get_ident()
        if self._thread is None:
            self._thread = current
        elif self._thread != current:
            msg = "a libnftables context was used from a second thread"
            raise AssertionError(msg)
        if self._context is None:
            if not _has_net_admin():
                msg = "CAP_NET_ADMIN is needed to work with nftables"
                raise PermissionDeniedError(msg)
            before = netfilter_sockets().items()
            self._context = _new_context()
            self._socket = max((number for number, _ in netfilter_sockets().items() - before), default=-1)
            self._told = 0
            self._tell_port()
        return self._context

    def _run_once(self, text: str) -> None:
        code, _, error = self._ours().cmd(text)
        self._tell_port()  # interrupted, libnftables goes on with a new socket
        if code == 0:
            return
        self._context = None
        reason = _reason(error)
        _raise_permission(reason)
        if (kind := _kind(error)) is not TransactionError:
            raise kind(reason)
        if not (reason.endswith(VALIDATION_ERRORS) and len(text) > _SHORT):
            # nft points at the wrong line for text it was given in memory, at the right one for a file.
            self._check_as_file(text, fallback=reason)
        raise TransactionError(reason)

    def _check_as_file(self, text: str, fallback: str) -> None:
        """Have a transaction checked; the error names the lines that nft points at."""
        context = self._ours()
        descriptor = os.memfd_create("nodeproxy-transaction")
        try:
            with os.fdopen(descriptor, "w", closefd=False) as file:
                file.write(text)
            context.set_dry_run(True)
            code, _, error = context.cmd_from_file(f"/proc/self/fd/{descriptor}")
        finally:
            context.set_dry_run(False)
            os.close(descriptor)
        if code == 0:
            return
        self._context = None
        reason = _reason(error) or fallback
        _raise_permission(reason)
        kind = _kind(error or fallback)
        refusals = _refusals(text, error)
        if not refusals:
            raise kind(reason)
        first = refusals[0]
        raise kind(first.reason, owner=first.owner, statement=first.statement, refusals=refusals)


def _has_net_admin(status: Path = Path("/proc/self/status")) -> bool:
    """Whether this process may work with nftables; libnftables itself would complain on standard error."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status.read_text(), re.MULTILINE)
    return found is None or bool(int(found[1], 16) >> _CAP_NET_ADMIN & 1)


def _new_context() -> Any:
    # Imported here, since rules can be rendered without it.
    try:
        import nftables  # noqa: PLC0415
    except ImportError:
        msg = "the nftables module for Python is missing (Debian and Ubuntu: python3-nftables)"
        raise UnsupportedError(msg) from None
    binding = getattr(nftables, "Nftables", None)
    if not isinstance(binding, type) or not all(hasattr(binding, name) for name in _NEEDED):
        place = getattr(nftables, "__file__", None) or "a folder of that name"
        msg = f"the nftables module for Python ({place}) is not libnftables' (Debian, Ubuntu: python3-nftables)"
        raise UnsupportedError(msg)

    class Context(binding):  # type: ignore[misc, valid-type]  # has no types
        """The module's class, without the noise that 1.0.x makes when what could not be opened is thrown away."""

        def __del__(self) -> None:
            if hasattr(self, "_Nftables__ctx"):
                super().__del__()

    try:
        return Context()
    except (OSError, AttributeError) as error:
        msg = f"libnftables is missing (Debian and Ubuntu: libnftables1): {error}"
        raise UnsupportedError(msg) from None


def _reason(error: str) -> str:
    """The first error that nft reported, on one line."""
    found = _ANY_ERROR.search(error)
    return (found[1] if found else error.strip().partition("\n")[0]).strip()


def _raise_permission(reason: str) -> None:
    if "Operation not permitted" in reason:
        msg = f"nftables: {reason} (CAP_NET_ADMIN is needed)"
        raise PermissionDeniedError(msg)


def _kind(error: str) -> type[TransactionError]:
    """Whether what nft reported may pass: only if all of it may."""
    messages = _ANY_ERROR.findall(error) or [error]
    kinds = {next((kind for sign, kind in _KINDS if sign in message), TransactionError) for message in messages}
    return kinds.pop() if len(kinds) == 1 else TransactionError


def _refusals(text: str, error: str) -> list[Refusal]:
    """The statements of a transaction that nft points at, in its order."""
    lines = text.splitlines()
    found: list[Refusal] = []
    invalid = False
    for words, message in _ERROR_AT.findall(error):
        number, reason = int(words), message.strip()
        if not 0 < number <= len(lines):
            continue
        if reason.endswith(VALIDATION_ERRORS):
            if invalid:
                continue
            invalid = True
        refusal = _refusal(_single_element(lines, number) or lines[number - 1], reason)
        if reason.startswith(SYNTAX_ERROR) and number > 1:
            refusal = refusal._replace(before=_refusal(lines[number - 2], reason).owner)
        found.append(refusal)
    return found


def _single_element(lines: list[str], number: int) -> str:
    """The element of a statement that begins in this line, if it has but one, in a line of its own; else empty."""
    one_only = lines[number - 1].endswith("{") and "".join(lines[number + 1 : number + 2]).startswith("}")
    return lines[number] if one_only else ""


def _refusal(line: str, reason: str) -> Refusal:
    """What is refused, of a line that names its owner at its end."""
    owner = _OWNER.search(line)
    statement = line[: owner.start()] if owner else line
    return Refusal(owner[1] if owner else "", reason, statement.strip().removesuffix("#").rstrip())
