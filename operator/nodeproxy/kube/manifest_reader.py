"""Keeping what is known of a folder of manifests in step with the folder, reading as little as possible."""

import os
import stat
import time
from collections.abc import Callable, Set
from pathlib import Path

from nodeproxy.kube.manifest_files import MAX_BYTES, ManifestError, parse_manifest
from nodeproxy.kube.manifest_state import ManifestState
from nodeproxy.kube.manifest_tree import DANGLING, Fingerprint, Tree, fingerprint, is_manifest_name, scan

# Time stamps of files advance in steps of a few milliseconds. A file that changed this recently may change again
# without its fingerprint showing it, so that fingerprint is not trusted.
_SETTLED_NS = 100_000_000


def _never() -> bool:
    return False


class ManifestReader:
    """Reads files into a :class:`ManifestState`; used by one thread at a time.

    Args:
        root: the folder, absolute.
        stopping: asked between files; once it is true, a scan ends early.
    """

    def __init__(self, root: Path, stopping: Callable[[], bool] = _never) -> None:
        self.state = ManifestState()
        self._root = root
        self._stopping = stopping
        self._tree = Tree()
        self._known: dict[str, Fingerprint | None] = {}
        self._unlisted: set[str] = set()

    def rescan(self, touched: Set[str] = frozenset()) -> None:
        """Look through the whole folder, and read the files that are new, or differ from what was read.

        Args:
            touched: absolute paths of files to be read whatever their fingerprint says.

        Raises:
            OSError: the folder cannot be listed; nothing changes then.
        """
        tree = scan(self._root)
        targets = {os.path.realpath(path) for path in touched} if tree.linked else set()
        for name in self._unlisted - tree.errors.keys():
            self.state.excuse(name)
        # What lies in a directory that cannot be listed now, or that a link no longer leads to, stays as it was.
        for name in tree.dangling:
            if any(known.startswith(f"{name}/") for known in self._known):
                tree.errors[name] = DANGLING
        self._unlisted = tree.errors.keys() - tree.files.keys()
        for name in self._unlisted:
            self.state.fail(name, tree.errors[name], directory=True)
        kept = tuple(f"{name}/" for name in self._unlisted)
        for name in self._known.keys() - tree.files.keys():
            if not name.startswith(kept):
                self._forget(name)
        for name, now in tree.files.items():
            if self._stopping():
                return
            if now is None:
                self._known[name] = None
                self.state.fail(name, tree.errors[name])
            elif now != self._known.get(name) or (touched and self._is_touched(name, touched, targets, tree)):
                self.read(name)
            if self._known.get(name) == now:
                self._known[name] = now  # one object instead of two
        tree.files.clear()  # whoever asks what was there asks what is known
        self._tree = tree

    def _is_touched(self, name: str, touched: Set[str], targets: Set[str], tree: Tree) -> bool:
        path = f"{self._root}/{name}"
        return path in touched or (path in tree.linked and os.path.realpath(path) in targets)

    def update(self, paths: Set[str]) -> bool:
        """Follow events.

        Plain files are read or forgotten one by one; where directories or symlinks are involved, all is looked through.

        Args:
            paths: absolute paths, as the events have them, below the folder.

        Returns:
            Whether all of the folder was looked through.

        Raises:
            OSError: the folder cannot be listed.
        """
        prefix = f"{self._root}/"
        # A file can be reached over symlinks as well: then one event may concern several files.
        for path in () if self._tree.linked else paths:
            if not self._update_plain(path.removeprefix(prefix), path):
                break
        else:
            if not self._tree.linked:
                return False
        self.rescan(paths)
        return True

    def _update_plain(self, name: str, path: str) -> bool:
        """Follow the event of one plain file; False if it is something else."""
        parent, _, base = name.rpartition("/")
        if any(part.startswith(".") for part in name.split("/")):
            return not base.startswith("..")  # Nothing is linked, so only a new ``..data`` can matter.
        if parent not in self._tree.plain_directories:
            return False
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            if name in self._tree.plain_directories:
                return False
            self._forget(name)
            return True
        if not stat.S_ISREG(mode) or name in self._tree.plain_directories:
            return False
        if is_manifest_name(base):
            self.read(name)
        return True

    def links_changed(self) -> bool:
        """Whether anything that is reached over symlinks looks different; events are not certain to tell of it."""
        return any(fingerprint(path) != known for path, known in self._tree.linked.items())

    def read(self, name: str) -> None:
        """Read one file, named relative to the folder; if it is bad, what it said before stays in force."""
        self._known[name] = None
        try:
            data, now = _read(f"{self._root}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(f"{self._root}/{name}"):  # noqa: PTH114 -- as elsewhere here
                self.state.fail(name, DANGLING)
            else:
                self._forget(name)
            return
        except OSError as error:
            self.state.fail(name, error.strerror or str(error))
            return
        if time.time_ns() - max(now.ctime_ns, now.mtime_ns) > _SETTLED_NS:
            self._known[name] = now
        try:
            self.state.put(name, parse_manifest(data, name))
        except ManifestError as error:
            self.state.fail(name, str(error))

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        self.state.remove(name)


def _read(path: str) -> tuple[bytes, Fingerprint]:
    # Not blocking, should a named pipe have taken the file's place.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(path)
        # By its size: Python would reserve memory for all that may be read at most.
        data = file.read(min(status.st_size, MAX_BYTES) + 1)
        if len(data) > status.st_size:  # it has grown since
            data += file.read(MAX_BYTES + 1 - len(data))
        return data, Fingerprint.of(status)
