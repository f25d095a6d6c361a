"""What the API server has said of one kind of objects: which there are, in which version. Pure bookkeeping."""

from collections.abc import Iterable

import msgspec

from nodeproxy.kube.decode import Decoded, decode_json
from nodeproxy.kube.notes import show
from nodeproxy.kube.source import Change, ObjectKey, Problem
from nodeproxy.kube.streams import EventType, version_of

_FEW = 10
_ANONYMOUS = 100  # problems of objects without a readable name that are kept, at most


class Listing:
    """A list in the making; nothing of it counts before :meth:`Inventory.replace`."""

    def __init__(self) -> None:
        self.versions: dict[ObjectKey, str | None] = {}
        self.changes: list[Change] = []
        self.problems: dict[ObjectKey, tuple[Problem, ...]] = {}
        self.anonymous: list[Problem] = []


class Inventory:
    """The objects of a kind that are known, by key and resource version; the objects themselves are the sink's.

    Args:
        kind: of the objects.
        origin: where they are read, for problems.
    """

    def __init__(self, kind: str, origin: str) -> None:
        self.kind = kind
        self._origin = origin
        self._versions: dict[ObjectKey, str | None] = {}
        self._problems: dict[ObjectKey, tuple[Problem, ...]] = {}
        self._anonymous: list[Problem] = []

    def __len__(self) -> int:
        return len(self._versions)

    @property
    def problems(self) -> list[Problem]:
        """What is wrong with objects that are there."""
        return [*(problem for each in self._problems.values() for problem in each), *self._anonymous]

    @property
    def left_out(self) -> int:
        """How many objects that are there can't be used in the version they have."""
        return sum(any(problem.fatal for problem in each) for each in self._problems.values()) + len(self._anonymous)

    def doubtful(self, listing: Listing, *, never_empty: bool) -> str:
        """Why a list is to be confirmed by another before objects vanish on its word; empty: it is not."""
        count = len(listing.versions)
        if not count and never_empty:
            return "it is empty"
        if len(self) >= _FEW and 2 * count < len(self):
            return f"it holds {count} objects of {len(self)} known before"
        return ""

    def add(self, listing: Listing, items: Iterable[msgspec.Raw]) -> None:
        """Take objects into a list in the making."""
        for raw in items:
            decoded = self._decode(raw)
            key = decoded.key
            if key is None:
                listing.anonymous = [*listing.anonymous, *decoded.problems][-_ANONYMOUS:]
                continue
            if decoded.object is None:
                listing.problems[key] = _kept(decoded.problems) if key in self._versions else decoded.problems
                if key in self._versions:
                    listing.versions[key] = self._versions[key]
                continue
            if decoded.problems:
                listing.problems[key] = decoded.problems
            version = decoded.object.metadata.resource_version
            listing.versions[key] = version
            if version is None or self._versions.get(key) != version:
                listing.changes.append(Change(key, decoded.object))

    def replace(self, listing: Listing) -> list[Change]:
        """Let a list take the place of what is known; returns what differs, with what is gone."""
        gone = [Change(key, None) for key in self._versions if key not in listing.versions]
        self._versions = listing.versions
        self._problems = listing.problems
        self._anonymous = listing.anonymous
        return [*gone, *listing.changes]

    def take(self, event: EventType, raw: msgspec.Raw) -> tuple[Change | None, str]:
        """Take an event other than a bookmark or an error.

        Returns:
            the change that it is, if it is one, and the resource version after it; empty if that can't be read.
        """
        decoded = self._decode(raw)
        key, item = decoded.key, decoded.object
        version = (item.metadata.resource_version or "") if item is not None else version_of(raw)
        if key is None:
            self._anonymous = [*self._anonymous, *decoded.problems][-_ANONYMOUS:]
            return None, version
        if event == "DELETED":
            self._problems.pop(key, None)
            known = key in self._versions
            self._versions.pop(key, None)
            return (Change(key, None) if known else None), version
        if item is None:
            self._problems[key] = _kept(decoded.problems) if key in self._versions else decoded.problems
            return None, version
        if decoded.problems:
            self._problems[key] = decoded.problems
        else:
            self._problems.pop(key, None)
        if version and self._versions.get(key) == version:
            return None, version
        self._versions[key] = version or None
        return Change(key, item), version

    def _decode(self, raw: msgspec.Raw) -> Decoded:
        decoded = decode_json(raw, self._origin, self.kind)
        if decoded.ignored or (decoded.key is not None and decoded.key.kind != self.kind):
            what = decoded.ignored or (decoded.key.kind if decoded.key else "")
            reason = f"{show(what)} among objects of kind {self.kind}"
            return Decoded(problems=(Problem(self._origin, "", "kind", reason, fatal=True),), origin=self._origin)
        return decoded


def _kept(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Problems of an object of which an earlier version stays in force."""
    return tuple(
        Problem(each.origin, each.subject, each.field, each.reason, each.fatal, each.harmless, kept=each.fatal)
        for each in problems
    )
