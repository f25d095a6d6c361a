"""A control plane leaves nothing behind: closed, failed, or with its process killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster.control_plane import ControlPlane
from cluster.processes import ProgramError, Scratch
from cluster.programs import ELSEWHERE, Programs

TESTS = Path(__file__).resolve().parents[1]
_CHILD = """
import json, os, signal, sys
from cluster.control_plane import ControlPlane
plane = ControlPlane()
inode = os.fstat(plane.namespace.fd).st_ino
pids = [program.pid for program in (plane.etcd, plane.apiserver, plane.manager)]
print(json.dumps({"pids": pids, "namespace": inode, "folder": str(plane.folder)}), flush=True)
signal.pause()
"""
_PATIENCE = 30.0


def _holders(inode: int) -> list[str]:
    """The links below /proc that keep a network namespace."""
    found = []
    for pid in (name for name in os.listdir("/proc") if name.isdecimal()):  # noqa: PTH208
        for folder in (f"/proc/{pid}/ns", f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):  # noqa: PTH208
                    with contextlib.suppress(OSError):
                        if os.readlink(f"{folder}/{name}") == f"net:[{inode}]":  # noqa: PTH115
                            found.append(f"{folder}/{name}")
    return found


def _running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"  # nobody may be there to reap it


def _gone(pids: list[int], inode: int) -> bool:
    end = time.monotonic() + _PATIENCE
    while any(map(_running, pids)) or _holders(inode):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _children() -> set[str]:
    """Processes that any thread of this one started and did not reap."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_runs_on_when_the_process_is_killed(cluster_programs: Programs, number: signal.Signals) -> None:
    """Programs and namespace are gone at once; the folder is, once another control plane starts."""
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}", ELSEWHERE: str(cluster_programs.folder)}
    child = subprocess.Popen([sys.executable, "-c", _CHILD], stdout=subprocess.PIPE, text=True, env=environment)
    with child:
        assert child.stdout is not None
        try:
            made = json.loads(child.stdout.readline())
            assert all(map(_running, made["pids"]))
            assert _holders(made["namespace"])
        finally:
            child.send_signal(number)
        assert child.wait(_PATIENCE) == -number
    assert _gone(made["pids"], made["namespace"])
    Scratch().close()
    assert not Path(made["folder"]).exists()


def test_closing_it_ends_everything(cluster_programs: Programs) -> None:
    with ControlPlane(cluster_programs) as plane:
        folder = plane.folder
        inode = os.fstat(plane.namespace.fd).st_ino
        pids = [program.pid for program in (plane.etcd, plane.apiserver, plane.manager)]
    assert _gone(pids, inode)
    assert not folder.exists()


def test_a_start_that_fails_says_which_program_did_with_its_last_words(cluster_programs: Programs) -> None:
    before = _children()
    with pytest.raises(ProgramError, match="kube-apiserver ended with exit code") as failure:
        ControlPlane(cluster_programs, apiserver_flags=["--no-such-flag"])
    assert "unknown flag: --no-such-flag" in str(failure.value)
    assert _children() == before


def test_a_folder_that_is_in_use_is_left_alone() -> None:
    with contextlib.closing(Scratch()) as used:
        with contextlib.closing(Scratch()) as other:
            assert other.path != used.path
        assert used.path.is_dir()
        assert not other.path.exists()
