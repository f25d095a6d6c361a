"""Collecting what is wrong with one object while it is read."""

import re
import reprlib
from collections.abc import Callable

from nodeproxy.kube.addresses import canonical_address
from nodeproxy.kube.source import Problem

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 80
_repr.maxlevel = 2
_repr.maxlist = _repr.maxdict = _repr.maxtuple = 3
_INDEX = re.compile(r"\[([0-9]+)\]")


def show(value: object) -> str:
    """A value as a problem quotes it: short, on one line, control characters escaped."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return _repr.repr(value)


class Rejected(Exception):  # noqa: N818 -- it ends the reading of one value, and is an error only at the top
    """A value that cannot be used.

    Args:
        field: path of the field, as ``spec.ports[1].port``.
        reason: what is wrong with it, with the value.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason


class Notes:
    """The problems of one object.

    Args:
        origin: where it was read, see :class:`~nodeproxy.kube.source.Problem`.
        subject: ``Service ns/name``; empty if the key could not be read.
    """

    __slots__ = ("_kept", "origin", "problems", "subject")

    def __init__(self, origin: str, subject: str) -> None:
        self.origin = origin
        self.subject = subject
        self.problems: list[Problem] = []
        self._kept: dict[str, list[int]] = {}

    def kept(self, path: str, indexes: list[int]) -> None:
        """Note which entries of a list remain, so that those that are noted later keep the index they were given."""
        self._kept[path] = indexes

    def add(self, field: str, reason: str, *, harmless: bool = False) -> None:
        """Note that a part was left out, or (``harmless``) read in a way that deserves a word."""
        self.problems.append(Problem(self.origin, self.subject, self._as_given(field), reason, harmless=harmless))

    def about(self, field: str) -> bool:
        """Whether something was noted of a field or of anything in it."""
        return any(problem.field.startswith(field) for problem in self.problems)

    def fatal(self, rejected: Rejected) -> tuple[Problem, ...]:
        """All problems, ending with the one that cost the whole object."""
        field = self._as_given(rejected.field)
        self.problems.append(Problem(self.origin, self.subject, field, rejected.reason, fatal=True))
        return tuple(self.problems)

    def _as_given(self, field: str) -> str:
        if not self._kept:
            return field
        given = ""
        for part in _INDEX.split(field):
            indexes = self._kept.get(given) if part.isdecimal() else None
            given += f"[{indexes[int(part)]}]" if indexes else f"[{part}]" if part.isdecimal() else part
        return given

    def read(self, parse: Callable[[str], str], text: str, field: str) -> str | None:
        """Parse an address or CIDR; what cannot be read, or is read unlike it was written, is noted.

        Args:
            parse: ``canonical_address`` or ``canonical_cidr``.
            text: what was given.
            field: its path.

        Returns:
            The canonical form, or None if there is none.
        """
        try:
            canonical = parse(text)
        except ValueError as error:
            self.add(field, _shortened(str(error), text))
            return None
        if canonical != text and not _same_ipv6(text, canonical):
            self.add(field, f"{show(text)} was read as {canonical}", harmless=True)
        return canonical


def _shortened(message: str, text: str) -> str:
    return message.replace(repr(text), show(text))


def _same_ipv6(text: str, canonical: str) -> bool:
    """Whether the two differ in no more than the ways to write one IPv6 address: case and zeros."""
    if ":" not in canonical or "." in text or text != text.strip():
        return False
    return canonical_address(text.partition("/")[0]) == canonical.partition("/")[0]
