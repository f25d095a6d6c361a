"""The kube-proxy of Kubernetes 1.31, the first release with nftables mode on by default, built from its Go module."""

import fcntl
import hashlib
import os
import re
import tempfile
import time
from pathlib import Path

from cluster.go import toolchain
from cluster.programs import ProgramsError, cache_folder, say

HERE = Path(__file__).resolve().parent / "v1.31"
_PACKAGE = "k8s.io/kubernetes/cmd/kube-proxy"
_STAMP = "k8s.io/component-base/version"
_TAIL = 2000


def old_kube_proxy() -> Path:
    """Find it, and build it if it is missing (some minutes), in the folder where the other programs are kept.

    Raises:
        cluster.go.GoError: there is no Go that could, and none to be had.
        ProgramsError: it can't be built.
    """
    module = (HERE / "go.mod").read_text()
    version, least = (_word(pattern, module) for pattern in (r"^\tk8s\.io/kubernetes (v\S+)", r"^go (\S+)"))
    major, minor, _ = version.removeprefix("v").split(".", 2)
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    flags = [
        "-trimpath",
        "-ldflags",
        " ".join(["-s -w", *(f"-X {_STAMP}.{key}={text}" for key, text in stamps.items())]),
    ]
    content = f"{module}{(HERE / 'go.sum').read_text()}{flags}{os.uname().machine}"
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    built = cache / f"kube-proxy-{version}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    with Path(f"{built}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            go = toolchain(least, cache, say)
            say(f"building kube-proxy {version} with {go.version} ({go.path}): minutes, once")
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="kube-proxy.", dir=cache) as part:
                log = Path(part) / "log"
                argv = ["build", *flags, "-o", f"{part}/kube-proxy", _PACKAGE]
                with log.open("w") as written, go.start(argv, HERE, written) as process:
                    code = process.wait()
                if code:
                    raise ProgramsError(f"go build failed (exit code {code}):\n{log.read_text()[-_TAIL:]}")
                Path(part, "kube-proxy").rename(built)
            say(f"done in {time.monotonic() - began:.0f} s: {built}")
    return built


def _word(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise ProgramsError(f"{HERE / 'go.mod'} has no line like {pattern}")
    return found[1]
