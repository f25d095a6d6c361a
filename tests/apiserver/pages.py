"""Continue tokens: where the next page of a list begins."""

import base64
import binascii
from typing import NamedTuple

import msgspec

from .store import Key


class BadTokenError(Exception):
    """A text that is no continue token."""


class _Token(msgspec.Struct):
    v: str
    rv: int
    start: str


class Position(NamedTuple):
    """Behind an object, as of a version; None: as things are by then, which may not fit the pages before."""

    version: int | None
    after: Key

    def token(self) -> str:
        """As clients get it."""
        token = _Token("meta.k8s.io/v1", -1 if self.version is None else self.version, "/".join(self.after) + "\0")
        return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")

    @classmethod
    def of(cls, token: str) -> "Position":
        """What a token says.

        Raises:
            BadTokenError: it is none.
        """
        try:
            read = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=_Token)
        except (binascii.Error, ValueError, msgspec.DecodeError):
            raise BadTokenError(token) from None
        namespace, _, name = read.start.rstrip("\0").partition("/")
        return cls(None if read.rv < 0 else read.rv, (namespace, name))
