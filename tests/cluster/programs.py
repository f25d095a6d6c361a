"""The programs of a control plane, built from the Go modules that ``go.mod`` beside this file names.

usage: python -m cluster.programs      builds what is missing, says how that goes, and prints the folder

They lie in ``$XDG_CACHE_HOME/nodeproxy`` (or ``~/.cache/nodeproxy``), in a folder for each version and way of
building, and are built once. Go keeps its own caches of modules and objects where it always does. Two builds at once
are safe: the second waits for the first. ``NODEPROXY_CLUSTER_PROGRAMS`` names a folder that has them all instead.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.go import GoError, Toolchain, toolchain

HERE = Path(__file__).resolve().parent
ELSEWHERE = "NODEPROXY_CLUSTER_PROGRAMS"
"""Environment variable: a folder with the programs."""
PACKAGES: Mapping[str, str] = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
"""Program to Go package."""
EVERY = 30.0
"""Seconds between two lines that say what is going on."""
_STAMP = "k8s.io/component-base/version"


class ProgramsError(RuntimeError):
    """The programs can't be built; the message says what failed and what helps."""


@dataclass(frozen=True)
class Programs:
    """Where the programs are.

    Attributes:
        folder: they are in it, under their names.
        version: of Kubernetes, such as "v1.37.2".
    """

    folder: Path
    version: str

    @property
    def etcd(self) -> Path:
        """The store."""
        return self.folder / "etcd"

    @property
    def kube_apiserver(self) -> Path:
        """The API server."""
        return self.folder / "kube-apiserver"

    @property
    def kube_controller_manager(self) -> Path:
        """The controllers."""
        return self.folder / "kube-controller-manager"

    @property
    def kube_proxy(self) -> Path:
        """The proxy that this project replaces."""
        return self.folder / "kube-proxy"

    @property
    def kubectl(self) -> Path:
        """The command line."""
        return self.folder / "kubectl"

    def missing(self) -> list[str]:
        """The programs that are not there."""
        return [name for name in PACKAGES if not os.access(self.folder / name, os.X_OK)]


def programs() -> Programs:
    """Find the programs, and build them if they are missing (some minutes; says how it goes on standard error).

    Raises:
        ProgramsError: they can't be built.
        GoError: there is no Go that could, and none to be had.
    """
    version = kubernetes_version()
    if given := os.environ.get(ELSEWHERE):
        found = Programs(Path(given), version)
        if lacking := found.missing():
            raise ProgramsError(f"{ELSEWHERE}={given} lacks {', '.join(lacking)}")
        return found
    cache = cache_folder()
    found = Programs(cache / f"kubernetes-{version}-{_digest()}", version)
    if found.missing():
        cache.mkdir(parents=True, exist_ok=True)
        with _only_one(cache / f"{found.folder.name}.lock"):
            if found.missing():  # nobody built them meanwhile
                _build(found)
    return found


def cache_folder() -> Path:
    """Where built programs are kept.

    Raises:
        ProgramsError: there is no home folder to put it in.
    """
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise ProgramsError("there is no home folder; set XDG_CACHE_HOME to say where programs are kept") from error
    return base / "nodeproxy"


def kubernetes_version() -> str:
    """The version that ``go.mod`` asks for: the one place that says so."""
    return _in_module(r"\tk8s\.io/kubernetes (v\S+)")


def _in_module(pattern: str) -> str:
    found = re.search(f"^{pattern}", (HERE / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise ProgramsError(f"{HERE / 'go.mod'} has no line like {pattern}")
    return found[1]


def _flags() -> list[str]:
    version = kubernetes_version()
    major, minor = version.removeprefix("v").split(".")[:2]
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return [
        "-trimpath",
        "-ldflags",
        " ".join(["-s -w", *(f"-X {_STAMP}.{key}={value}" for key, value in stamps.items())]),
    ]


def _digest() -> str:
    content = [(HERE / name).read_bytes() for name in ("go.mod", "go.sum")]
    words = "\0".join([*_flags(), *PACKAGES.values(), os.uname().machine])
    return hashlib.sha256(b"\0".join([*content, words.encode()])).hexdigest()[:12]


def say(line: str) -> None:
    """Tell the user what is going on."""
    print(f"programs: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        began = time.monotonic()
        said = -EVERY
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waited = time.monotonic() - began
                if waited - said >= EVERY:
                    said = waited
                    say(f"another process builds them; waiting for it ({waited:.0f} s)")
                time.sleep(0.2)
            else:
                break
        yield


def _build(found: Programs) -> None:
    go = toolchain(_in_module(r"go (\S+)"), cache_folder(), say)
    say(f"building etcd and Kubernetes {found.version} with {go.version} ({go.path}): minutes, once")
    parent = found.folder.parent
    _clear_away(parent, found.folder.name)
    part = Path(tempfile.mkdtemp(prefix=f"{found.folder.name}.", suffix=".part", dir=parent))
    try:
        began = time.monotonic()
        _compile(go, part, began)
        (part / "server").rename(part / "etcd")
        if lacking := Programs(part, found.version).missing():
            raise ProgramsError(f"go build succeeded without making {', '.join(lacking)}")
        part.chmod(0o755)
        shutil.rmtree(found.folder, ignore_errors=True)  # incomplete, or nothing would be built
        part.rename(found.folder)
        say(f"done in {time.monotonic() - began:.0f} s: {found.folder}")
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _clear_away(parent: Path, name: str) -> None:
    """Remove what builds left that were killed; only the holder of the lock may."""
    for left in parent.glob(f"{name}.*.part"):
        shutil.rmtree(left, ignore_errors=True)


def _compile(go: Toolchain, target: Path, began: float) -> None:
    """Run ``go build``, and say which program is ready and, now and then, what it is at."""
    argv = ["build", "-v", *_flags(), "-o", f"{target}/", *PACKAGES.values()]
    waiting = {"server" if name == "etcd" else name: name for name in PACKAGES}
    log = target / "log"
    said = began
    compiled, now = 0, "reading go.mod"
    try:
        with log.open("w+") as written, log.open() as read, go.start(argv, HERE, written) as process:
            ended = False
            while not ended:
                ended = process.poll() is not None
                for line in read:
                    compiled += not line.startswith("go: ")
                    now = line.strip().removeprefix("go: ")
                for made in [made for made in waiting if (target / made).exists()]:
                    say(f"{waiting.pop(made)} is built ({time.monotonic() - began:.0f} s)")
                if time.monotonic() - said >= EVERY:
                    said = time.monotonic()
                    say(f"{said - began:.0f} s: {compiled} packages compiled; {now}")
                if not ended:
                    time.sleep(0.2)
        if process.returncode:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise ProgramsError(f"go build failed (exit code {process.returncode}):\n{tail}\n{_advice(tail)}")
    finally:
        log.unlink(missing_ok=True)


def _advice(output: str) -> str:
    if re.search(r"dial tcp|no such host|i/o timeout|proxy\.golang\.org|connection refused|unreachable", output):
        return "Is there a network? Modules come from proxy.golang.org; behind a proxy set https_proxy or GOPROXY."
    if "no space left" in output:
        return "The disk is full: building takes 5 GB in Go's own caches (go env GOCACHE GOMODCACHE)."
    if "signal: killed" in output:
        return "The compiler was killed: building takes about 3 GB of memory."
    return f"By hand: cd {HERE} && go build -o /dev/null {' '.join(PACKAGES.values())}"


def main() -> int:
    """Build what is missing and print the folder; 1 if that fails."""
    try:
        print(programs().folder)
    except (ProgramsError, GoError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
