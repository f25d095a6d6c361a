"""Which version of each object is in force, when files claim it. Pure bookkeeping; reads no files."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from sys import intern
from typing import NamedTuple

from nodeproxy.kube.manifest_files import ManifestFile
from nodeproxy.kube.objects import KubeObject
from nodeproxy.kube.source import Change, ObjectKey, Problem, in_order


class _Claim(NamedTuple):
    """One place that holds an object. Earlier places win, so the first two fields order claims.

    Attributes:
        file: the file.
        position: the position within it.
        detail: what follows the file's name in the origin, as ``#2``; empty if the file does not say it any more.
        object: the object; None: it can't be used, and what was known before may stay in its place.
    """

    file: str
    position: int
    detail: str
    object: KubeObject | None

    @property
    def origin(self) -> str:
        """Where it was read."""
        return self.file + self.detail


class ManifestState:
    """What a set of files says, and what of it has been handed over.

    Of several files or documents that hold an object, the first wins: in the order of paths, then within the file.
    Files are put and removed in any order; :meth:`changes` tells what that amounts to, and :meth:`delivered` notes
    that it has been handed over. Until then the same changes are told again.
    """

    def __init__(self) -> None:
        self._claims: dict[ObjectKey, tuple[_Claim, ...]] = {}
        self._held: dict[str, tuple[ObjectKey, ...]] = {}  # the keys of a file's claims
        self._ignored: dict[str, Counter[str]] = {}
        self._problems: dict[str, tuple[tuple[ObjectKey | None, Problem], ...]] = {}
        self._errors: dict[str, Problem] = {}
        self._directories: set[str] = set()  # of those with errors
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
        """All problems that stand now, in the order of files and of what is in them.

        Those of duplicates are as of the last :meth:`changes`.
        """
        return in_order(
            [
                *(replace(problem, kept=self._keeps(name)) for name, problem in self._errors.items()),
                *(
                    replace(problem, kept=True) if problem.fatal and self._keeps_object(name, key) else problem
                    for name, problems in self._problems.items()
                    for key, problem in problems
                ),
                *(problem for problems in self._losers.values() for problem in problems),
            ]
        )

    def _keeps(self, name: str) -> bool:
        """Whether anything stays in force of a file that can't be read, or below a directory that can't be listed."""
        if name in self._directories:
            files = [file for file in self._held if file.startswith(f"{name}/")]
        else:
            files = [name] if name in self._held else []
        return any(claim.object for file in files for key in self._held[file] for claim in self._of_file(key, file))

    def _keeps_object(self, name: str, key: ObjectKey | None) -> bool:
        """Whether an earlier version of a bad object of a file stays in force; None: its key could not be read."""
        if key is not None:
            return any(claim.object for claim in self._of_file(key, name))
        return any(not claim.detail for held in self._held[name] for claim in self._of_file(held, name))

    def put(self, name: str, manifest: ManifestFile) -> None:
        """Take what a file says now, in place of what it said before.

        An object that turned bad stays as it was. If the key of a bad object cannot be read, it could be any of those
        that the file held and now does not: they stay as well.
        """
        before = self._withdraw(name)
        held: dict[ObjectKey, None] = {}
        for position, decoded in enumerate(manifest.objects):
            if (key := decoded.key) is not None:
                detail = intern(decoded.origin.removeprefix(name))
                self._claim(key, _Claim(name, position, detail, decoded.object or before.get(key)))
                held[key] = None
        if any(decoded.key is None for decoded in manifest.objects):
            for position, (key, obj) in enumerate(before.items(), start=len(manifest.objects)):
                if key not in held:
                    self._claim(key, _Claim(name, position, "", obj))
                    held[key] = None
        self._touched.update(held)
        self._held[name] = tuple(held)
        if manifest.ignored:
            self._ignored[name] = manifest.ignored
        if problems := tuple((decoded.key, problem) for decoded in manifest.objects for problem in decoded.problems):
            self._problems[name] = problems

    def fail(self, name: str, reason: str, *, directory: bool = False) -> None:
        """Note that a file could not be read, or a directory not be listed; what it said before stays in force."""
        self._errors[name] = Problem(name, "", "", reason, fatal=True)
        if directory:
            self._directories.add(name)
        else:
            self._directories.discard(name)

    def excuse(self, name: str) -> None:
        """Forget that a directory could not be listed."""
        self._errors.pop(name, None)
        self._directories.discard(name)

    def remove(self, name: str) -> None:
        """Take note that a file is gone."""
        self._withdraw(name)

    def _claim(self, key: ObjectKey, claim: _Claim) -> None:
        self._claims[key] = (*self._claims.get(key, ()), claim)

    def _withdraw(self, name: str) -> dict[ObjectKey, KubeObject]:
        """Forget a file; returns the objects that it held, the first of each key, in order."""
        held: list[tuple[int, ObjectKey, KubeObject]] = []
        for key in self._held.pop(name, ()):
            self._touched.add(key)
            held += [(claim.position, key, claim.object) for claim in self._of_file(key, name) if claim.object]
            rest = tuple(claim for claim in self._claims[key] if claim.file != name)
            if rest:
                self._claims[key] = rest
            else:
                del self._claims[key]
        self._ignored.pop(name, None)
        self._problems.pop(name, None)
        self._errors.pop(name, None)
        objects: dict[ObjectKey, KubeObject] = {}
        for _, key, obj in sorted(held, key=lambda entry: entry[0]):
            objects.setdefault(key, obj)
        return objects

    def _of_file(self, key: ObjectKey, name: str) -> Iterator[_Claim]:
        return (claim for claim in self._claims[key] if claim.file == name)

    def changes(self) -> list[Change]:
        """What differs from what has been handed over, sorted by key."""
        changes = []
        for key in sorted(self._touched):
            known = self._in_force.get(key)
            if known is not None and not any(claim.object for claim in self._claims.get(key, ())):
                # The file that held it is gone, and one that came for it is bad: the last good version stays.
                adopted = tuple(claim._replace(object=known) for claim in self._claims.get(key, ()))
                if adopted:
                    self._claims[key] = adopted
            claims = [claim for claim in self._claims.get(key, ()) if claim.object is not None]
            self._losers.pop(key, None)
            if not claims:
                if known is not None:
                    changes.append(Change(key, None))
                continue
            winner = min(claims, key=lambda claim: claim[:2])
            if winner.object != known:
                changes.append(Change(key, winner.object))
            if len(claims) > 1:
                reason = f"is the same object as in {winner.origin}, which is used"
                self._losers[key] = [
                    Problem(claim.origin, str(key), "", reason) for claim in claims if claim is not winner
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
