"""What a run of the benchmark comes to when measurements fail, take too long, or miss what is expected."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import bench
import bench.__main__ as program
from bench.errors import BenchError
from bench.folder import Commits
from bench.plan import Task
from cluster.programs import ELSEWHERE
from netns.namespaces import Namespace

EDIT = {"start s": 1.0, "edit s": [0.02], "peak KiB": 1024}


def _outcome(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str, **figures: Any) -> int:
    def measure(task: Task) -> dict[str, Any]:
        if task.topic == "libraries":
            return {"peak KiB": 1024, "libnftables": "1.1.3"}
        if not figures:
            msg = "nft is not there"
            raise BenchError(msg)
        return {**EDIT, **figures}

    monkeypatch.setattr(program, "measure", measure)
    return program.main(["--only", "folder", "--repeat", "2", "--json-dir", str(folder), *words])


def test_exit_code_0_says_that_all_that_was_measured_is_as_expected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert _outcome(monkeypatch, tmp_path, **{"peak KiB": 1024}) == 0


def test_exit_code_1_says_that_an_expectation_was_missed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _outcome(monkeypatch, tmp_path, **{"start s": 8.5}) == 1
    (missed,) = [line for line in capsys.readouterr().out.splitlines() if "MISSED" in line]
    assert "start to complete" in missed
    assert "8.50 s" in missed


def test_nothing_is_expected_on_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _outcome(monkeypatch, tmp_path, "--no-check", **{"start s": 8.5}) == 0
    assert "expectation" not in capsys.readouterr().out


def test_exit_code_2_says_that_something_could_not_be_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _outcome(monkeypatch, tmp_path) == 2
    assert "could not be measured: [1/2] folder 10,000" in capsys.readouterr().out
    (written,) = tmp_path.iterdir()
    assert [sample["error"] for sample in json.loads(written.read_text())["samples"]] == ["nft is not there"] * 2


def test_programs_that_can_not_be_built_are_told_of_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ELSEWHERE, str(tmp_path))
    assert program.main(["--only", "cluster", "--json-dir", str(tmp_path)]) == 2
    assert "lacks etcd" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_built_for_what_needs_no_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ELSEWHERE, str(tmp_path))
    assert program.main(["--programs", "--only", "load,folder"]) == 0
    assert capsys.readouterr().out == "\n"


def test_a_measurement_that_fails_tells_why() -> None:
    with pytest.raises(BenchError, match="no-such-measure"):
        program.measure(Task("load", "no-such-measure"))


def test_a_measurement_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Task, "timeout", 0.01)
    with pytest.raises(BenchError, match="not done within"):
        program.measure(Task("libraries", "libraries"))


def test_a_measurement_ends_with_the_benchmark(tmp_path: Path) -> None:
    words = ["--only", "load", "--sizes", "50", "--changes", "10000", "--json-dir", str(tmp_path)]
    running = subprocess.Popen(
        [sys.executable, "-m", "bench", *words],
        env={**os.environ, "PYTHONPATH": f"{bench.SOURCES}:{bench.TESTS}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        workers: list[int] = []
        deadline = time.monotonic() + 60
        while not any(_is_measuring(worker) for worker in workers):
            assert time.monotonic() < deadline
            time.sleep(0.05)
            workers = [int(pid) for pid in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()]
        running.terminate()
        assert running.wait(20) == 143
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    finally:
        running.kill()
        running.wait(20)


def _is_measuring(process: int) -> bool:
    try:
        return b"10000" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_commit_that_puts_something_in_force_is_noticed_and_one_that_only_removes_is_not(
    namespace: Namespace,
) -> None:
    namespace.nft("add table ip t; add set ip t s { type ipv4_addr; }; add element ip t s { 10.0.0.1 }")
    with Commits() as commits:
        namespace.nft("delete element ip t s { 10.0.0.1 }")
        with pytest.raises(BenchError, match="did not change"):
            commits.wait(0.3)
        namespace.nft("add element ip t s { 10.0.0.2 }")
        assert commits.wait(10) > 0


def test_commits_from_before_are_skipped(namespace: Namespace) -> None:
    with Commits() as commits:
        namespace.nft("add table ip t; add set ip t s { type ipv4_addr; }; add element ip t s { 10.0.0.1 }")
        commits.skip()
        with pytest.raises(BenchError, match="did not change"):
            commits.wait(0.1)
