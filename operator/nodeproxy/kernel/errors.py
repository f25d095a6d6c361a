"""What can go wrong between this program and the kernel.

::

    KernelError
    ├── UnsupportedError        the kernel or libnftables lacks something; says what
    ├── PermissionDeniedError   no CAP_NET_ADMIN
    ├── ReadBackError           the table could not be read
    └── TransactionError        the kernel or libnftables refused a transaction; nothing of it was applied
        ├── BusyError           may pass: EBUSY, EINTR, EAGAIN
        ├── TooLongError        too big for one message to the kernel (EMSGSIZE): cut it
        └── OutcomeUnknownError ENOBUFS: the answer was lost, the kernel may have applied it; read back

libnftables gives no error numbers, only text; it never translates it, so the text can be read.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Refusal(NamedTuple):
    """A statement that nft or the kernel refused.

    Attributes:
        owner: the service port whose it is, as ``ns/name:port``; empty if it is nobody's, or nft does not say.
        reason: what nft or the kernel said, on one line.
        statement: the statement; empty if that is not known.
        before: whose the statement before it is, where that may be the one that is not complete.
    """

    owner: str
    reason: str
    statement: str = ""
    before: str = ""


class KernelError(Exception):
    """Something between this program and the kernel went wrong."""


class UnsupportedError(KernelError):
    """The kernel or libnftables lacks something that is needed; the message says what."""


class PermissionDeniedError(KernelError):
    """The kernel wants CAP_NET_ADMIN, in the user namespace that owns the network namespace."""


class ReadBackError(KernelError):
    """The table could not be read back."""


class TransactionError(KernelError):
    """A transaction was refused as a whole.

    Attributes:
        reason: what nft or the kernel said, on one line.
        owner: the service port whose statement was refused, as ``ns/name:port``; empty if that is not known.
        statement: the statement that was refused; empty if that is not known.
        refusals: all statements that nft named at once; the first of them is that of the other attributes.
    """

    def __init__(self, reason: str, *, owner: str = "", statement: str = "", refusals: Sequence[Refusal] = ()) -> None:
        super().__init__(f"{owner}: {reason}" if owner else reason)
        self.reason = reason
        self.owner = owner
        self.statement = statement
        self.refusals = tuple(refusals) or (Refusal(owner, reason, statement),)


class BusyError(TransactionError):
    """Refused for a reason that may pass by itself."""


class TooLongError(TransactionError):
    """Too big for one message to the kernel."""


class OutcomeUnknownError(TransactionError):
    """The kernel's answer was lost: it may have applied the transaction, or not."""
