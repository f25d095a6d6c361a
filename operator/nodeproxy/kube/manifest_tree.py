"""Finding the files of a folder of manifests."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nodeproxy.kube.manifest_files import SUFFIXES

DANGLING = "is a symlink that leads nowhere"


class Fingerprint(NamedTuple):
    """Tells one state of a file from another without reading it.

    The time of change (of the inode) moves even when someone sets the time of modification back.
    """

    mtime_ns: int
    ctime_ns: int
    size: int
    inode: int
    device: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Fingerprint":
        """The fingerprint in a result of ``stat``."""
        return cls(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev)


@dataclass(slots=True)
class Tree:
    """What a scan found; all paths are relative to the folder.

    Attributes:
        files: files of manifests. None: its state could not be read.
        plain_directories: directories reached without a symlink, ``""`` for the folder itself.
        linked: absolute paths reached over symlinks, directories too, with what they were like.
        dangling: symlinks that lead nowhere now, and may have led to a directory.
        errors: what could not be looked at, and why.
    """

    files: dict[str, Fingerprint | None] = field(default_factory=dict)
    plain_directories: set[str] = field(default_factory=set)
    linked: dict[str, Fingerprint | None] = field(default_factory=dict)
    dangling: set[str] = field(default_factory=set)
    errors: dict[str, str] = field(default_factory=dict)


def is_manifest_name(name: str) -> bool:
    """Whether a file of this name counts: visible, and ending in .yaml, .yml or .json."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 -- hot


def fingerprint(path: str | Path) -> Fingerprint | None:
    """The fingerprint of what a path leads to, symlinks followed; None if that cannot be told."""
    try:
        return Fingerprint.of(os.stat(path))  # noqa: PTH116 -- hot
    except OSError:
        return None


def scan(root: Path) -> Tree:
    """Look for files of manifests, in nested folders and over symlinks.

    Hidden names are skipped: a mounted ConfigMap shows its files as symlinks through ``..data``. A directory that can
    be reached over several ways (a loop, for one) counts once: without a symlink if there is such a way, then in the
    order of paths.

    Raises:
        OSError: the folder itself cannot be listed.
    """
    tree = Tree()
    seen: set[tuple[int, int]] = set()
    links: list[tuple[str, str]] = []
    _list_directory(root, "", tree, seen, links, plain=True)
    if error := tree.errors.pop("", None):
        raise OSError(error)
    while links:
        links.sort(reverse=True)
        relative, path = links.pop()
        tree.linked[path] = fingerprint(path)
        _list_directory(Path(path), relative, tree, seen, links, plain=False)
    return tree


def _list_directory(
    root: Path, at: str, tree: Tree, seen: set[tuple[int, int]], links: list[tuple[str, str]], *, plain: bool
) -> None:
    pending = [(at, str(root))]
    while pending:
        relative, path = pending.pop()
        try:
            status = os.stat(path)  # noqa: PTH116 -- hot
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(path) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            if relative in {"", at} or not isinstance(error, FileNotFoundError):
                tree.errors[relative] = error.strerror or str(error)
            continue
        if plain:
            tree.plain_directories.add(relative)
        else:
            tree.linked[path] = Fingerprint.of(status)
        for entry in entries:
            if entry.name.startswith("."):
                continue
            name = f"{relative}/{entry.name}" if relative else entry.name
            _look_at(entry, name, tree, pending, links, plain=plain)


def _look_at(
    entry: os.DirEntry[str],
    name: str,
    tree: Tree,
    pending: list[tuple[str, str]],
    links: list[tuple[str, str]],
    *,
    plain: bool,
) -> None:
    is_link = False
    try:
        is_link = entry.is_symlink()
        if entry.is_dir():
            (links if is_link else pending).append((name, entry.path))
            return
        if not is_manifest_name(entry.name):
            if is_link and not os.path.exists(entry.path):  # noqa: PTH110 -- hot
                tree.dangling.add(name)
                tree.linked[entry.path] = None
            return
        status = entry.stat()
        if stat.S_ISREG(status.st_mode):
            tree.files[name] = Fingerprint.of(status)
            if is_link or not plain:
                tree.linked[entry.path] = tree.files[name]
    except FileNotFoundError:
        # A symlink to nothing is a file that can't be read; remembered, so that its coming to life is noticed. Any
        # other is gone meanwhile.
        tree.linked[entry.path] = None
        if is_link:
            tree.files[name] = None
            tree.errors[name] = DANGLING
    except OSError as error:
        # A loop of symlinks, or no permission: what the file said before stays in force.
        tree.files[name] = None
        tree.errors[name] = error.strerror or str(error)
