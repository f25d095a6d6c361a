"""The benchmark runs: a tiny cluster, each measurement once."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import plan

TESTS = Path(__file__).resolve().parents[2]
SERVICES = 20

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> tuple["subprocess.CompletedProcess[str]", dict[str, Any]]:
    """What a run prints, and the JSON that it writes."""
    folder = tmp_path_factory.mktemp("bench")
    words = ["--sizes", str(SERVICES), "--repeat", "1", "--changes", "3", "--edits", "1", "--json-dir", str(folder)]
    words += ["--only", ",".join(plan.INSIDE)]
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (written,) = folder.iterdir()
    return done, json.loads(written.read_text())


def test_every_topic_that_needs_no_other_programs_is_measured(bench: tuple[Any, dict[str, Any]]) -> None:
    assert [sample["topic"] for sample in bench[1]["samples"]] == list(plan.INSIDE)
    assert all("figures" in sample for sample in bench[1]["samples"])


def test_all_stages_of_a_load_take_time_and_add_up_to_no_more_than_all_of_it(bench: tuple[Any, dict[str, Any]]) -> None:
    figures = _figures(bench[1], "load")
    stages = [figures[f"{name} s"] for name in ("decode", "store", "plan", "compare", "render", "apply")]
    assert all(seconds > 0 for seconds in stages)
    assert sum(stages) <= figures["total s"]


def test_the_kernels_part_of_a_change_is_a_part_of_it(bench: tuple[Any, dict[str, Any]]) -> None:
    figures = _figures(bench[1], "load")
    assert len(figures["change s"]) == 3
    assert all(
        0 < kernel < whole for kernel, whole in zip(figures["change kernel s"], figures["change s"], strict=True)
    )


def test_more_than_the_libraries_is_in_memory_after_a_load(bench: tuple[Any, dict[str, Any]]) -> None:
    assert _figures(bench[1], "load")["peak KiB"] > _figures(bench[1], "libraries")["peak KiB"]


def test_the_versions_are_stated(bench: tuple["subprocess.CompletedProcess[str]", dict[str, Any]]) -> None:
    done, written = bench
    head = done.stdout.partition("\n")[0]
    for name in ("libnftables", "kernel", "python"):
        assert written["environment"][name]
        assert written["environment"][name] in head


def test_expectations_of_sizes_not_measured_count_as_neither_met_nor_missed(bench: tuple[Any, dict[str, Any]]) -> None:
    assert "not measured" in bench[0].stdout
    assert "MISSED" not in bench[0].stdout


def _figures(written: dict[str, Any], topic: str) -> dict[str, Any]:
    found: dict[str, Any] = next(sample["figures"] for sample in written["samples"] if sample["topic"] == topic)
    return found
