"""Which version of each object is in force, when files claim it. Pure bookkeeping; reads no files."""

from collections import Counter
from typing import TypeVar

from nodeproxy.kube.manifest_files import ManifestFile
from nodeproxy.kube.objects import KubeObject
from nodeproxy.kube.source import Change, ObjectKey, Problem

_Place = tuple[str, int]  # File, and position within it.
_T = TypeVar("_T")


class ManifestState:
    """What a set of files says, and what of it has been handed over.

    Of several files or documents that hold an object, the first wins: in the order of paths, then within the file.
    Files are put and removed in any order; :meth:`changes` tells what that amounts to, and :meth:`delivered` notes
    that it has been handed over. Until then the same changes are told again.
    """

    def __init__(self) -> None:
        self._claims: dict[ObjectKey, dict[_Place, tuple[KubeObject, str]]] = {}
        self._orphans: dict[ObjectKey, dict[_Place, str]] = {}
        self._places: dict[str, set[tuple[ObjectKey, _Place]]] = {}
        self._ignored: dict[str, Counter[str]] = {}
        self._problems: dict[str, tuple[Problem, ...]] = {}
        self._errors: dict[str, Problem] = {}
        self._losers: dict[ObjectKey, list[Problem]] = {}
        self._in_force: dict[ObjectKey, KubeObject] = {}
        self._touched: set[ObjectKey] = set()

    @property
    def objects(self) -> dict[ObjectKey, KubeObject]:
        """What is in force, as last handed over."""
        return dict(self._in_force)

    @property
    def ignored(self) -> Counter[str]:
        """How many objects of other kinds there are, by ``apiVersion kind``."""
        total: Counter[str] = Counter()
        for counts in self._ignored.values():
            total.update(counts)
        return total

    @property
    def problems(self) -> list[Problem]:
        """All problems that stand now, sorted. Those of duplicates are as of the last :meth:`changes`."""
        return sorted(
            [
                *self._errors.values(),
                *(problem for problems in self._problems.values() for problem in problems),
                *(problem for problems in self._losers.values() for problem in problems),
            ]
        )

    def put(self, name: str, manifest: ManifestFile) -> None:
        """Take what a file says now, in place of what it said before.

        An object that turned bad stays as it was. If the key of a bad object cannot be read, it could be any of those
        that the file held and now does not: they stay as well.
        """
        before = self._withdraw(name)
        places: set[tuple[ObjectKey, _Place]] = set()
        for position, decoded in enumerate(manifest.objects):
            key, place = decoded.key, (name, position)
            if key is None:
                continue
            obj = decoded.object or before.get(key)
            if obj is not None:
                self._claims.setdefault(key, {})[place] = (obj, decoded.origin)
            else:
                self._orphans.setdefault(key, {})[place] = decoded.origin
            places.add((key, place))
        if any(decoded.key is None for decoded in manifest.objects):
            named = {key for key, _ in places}
            for position, (key, obj) in enumerate(before.items(), start=len(manifest.objects)):
                if key not in named:
                    self._claims.setdefault(key, {})[name, position] = (obj, name)
                    places.add((key, (name, position)))
        self._touched.update(key for key, _ in places)
        self._places[name] = places
        if manifest.ignored:
            self._ignored[name] = manifest.ignored
        if problems := tuple(problem for decoded in manifest.objects for problem in decoded.problems):
            self._problems[name] = problems

    def fail(self, name: str, reason: str) -> None:
        """Note that a file could not be read; what it said before stays in force."""
        self._errors[name] = Problem(name, "", "", reason, fatal=True)

    def excuse(self, name: str) -> None:
        """Forget that a file could not be read."""
        self._errors.pop(name, None)

    def remove(self, name: str) -> None:
        """Take note that a file is gone."""
        self._withdraw(name)

    def _withdraw(self, name: str) -> dict[ObjectKey, KubeObject]:
        """Forget a file; returns the objects that it held, the first of each key."""
        held: dict[ObjectKey, KubeObject] = {}
        for key, place in sorted(self._places.pop(name, ()), key=lambda entry: entry[1]):
            self._touched.add(key)
            claim = _drop(self._claims, key, place)
            if claim is not None:
                held.setdefault(key, claim[0])
            _drop(self._orphans, key, place)
        self._ignored.pop(name, None)
        self._problems.pop(name, None)
        self._errors.pop(name, None)
        return held

    def changes(self) -> list[Change]:
        """What differs from what has been handed over, sorted by key."""
        changes = []
        for key in sorted(self._touched):
            claims = self._claims.get(key)
            known = self._in_force.get(key)
            if not claims and known is not None and (orphans := self._orphans.pop(key, None)):
                # The file that held it is gone, and one that came for it is bad: the last good version stays.
                claims = self._claims[key] = {place: (known, origin) for place, origin in orphans.items()}
            if not claims:
                self._losers.pop(key, None)
                if known is not None:
                    changes.append(Change(key, None))
                continue
            winner = min(claims)
            obj, origin = claims[winner]
            if obj != known:
                changes.append(Change(key, obj))
            self._losers.pop(key, None)
            if len(claims) > 1:
                self._losers[key] = [
                    Problem(claim[1], str(key), "", f"is the same object as in {origin}, which is used")
                    for place, claim in claims.items()
                    if place != winner
                ]
        return changes

    def delivered(self, changes: list[Change]) -> None:
        """Note that all of :meth:`changes` have been handed over."""
        for change in changes:
            if change.object is None:
                self._in_force.pop(change.key, None)
            else:
                self._in_force[change.key] = change.object
        self._touched.clear()


def _drop(table: dict[ObjectKey, dict[_Place, _T]], key: ObjectKey, place: _Place) -> _T | None:
    entries = table.get(key)
    if entries is None:
        return None
    entry = entries.pop(place, None)
    if not entries:
        del table[key]
    return entry
