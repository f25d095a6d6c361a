"""The benchmark beside kube-proxy runs: a tiny cluster, on a real API server and on a loopback one."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench import own_process, plan
from cluster.programs import ELSEWHERE, Programs

SERVICES = 20
RIVALS = ("kube-proxy", "nodeproxy")
START = {"start s", "peak KiB", "own peak KiB", "children's peak KiB"}
UPDATE = {"update s", "update after answer s", "API server s"}
BURST = {"burst changes a second", "burst lag p50 s", "burst lag p99 s", "burst convergence s", "burst growth KiB"}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def run(
    cluster_programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> tuple["subprocess.CompletedProcess[str]", dict[tuple[str, int], dict[str, Any]]]:
    """What a run prints, and its figures by topic and size."""
    folder = tmp_path_factory.mktemp("bench")
    words = ["--only", ",".join(plan.BESIDE), "--sizes", SERVICES, "--starts", 1, "--updates", 2]
    words += ["--idle", 1, "--burst", 3, "--rate", 50, "--json-dir", folder]
    done = subprocess.run(
        own_process("bench", *words),
        env={**os.environ, ELSEWHERE: str(cluster_programs.folder)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    (written,) = folder.iterdir()
    parts = [part for sample in json.loads(Path(written).read_text())["samples"] for part in sample["figures"]["parts"]]
    return done, {(part["topic"], part["services"]): part["figures"] for part in parts}


@pytest.mark.parametrize("rival", RIVALS)
def test_both_are_measured_in_all_topics(run: tuple[Any, dict[tuple[str, int], dict[str, Any]]], rival: str) -> None:
    figures = run[1]
    assert figures[f"cluster {rival}", SERVICES].keys() >= START | UPDATE | BURST | {"idle CPU %"}
    assert figures[f"loopback {rival}", SERVICES].keys() >= START | UPDATE
    assert figures[f"replay {rival}", SERVICES].keys() >= START | BURST


@pytest.mark.parametrize("rival", RIVALS)
def test_figures_are_possible(run: tuple[Any, dict[tuple[str, int], dict[str, Any]]], rival: str) -> None:
    figures = run[1][f"cluster {rival}", SERVICES]
    assert all(0.05 < seconds < 60 for seconds in figures["start s"])
    assert all(0 < seconds < 60 for seconds in figures["update s"])
    assert len(figures["update s"]) == 2
    assert figures["own peak KiB"][0] > 20 * 1024
    assert (figures["children's peak KiB"][0] > 0) == (rival == "kube-proxy"), "one starts nft, the other has it inside"
    assert run[1][f"replay {rival}", SERVICES]["burst changes a second"] == pytest.approx(50, rel=0.2)


def test_the_version_of_kubernetes_is_stated(
    run: tuple["subprocess.CompletedProcess[str]", Any], cluster_programs: Programs
) -> None:
    assert f"Kubernetes {cluster_programs.version}, kube-proxy" in run[0].stdout


def test_the_table_names_both(run: tuple["subprocess.CompletedProcess[str]", Any]) -> None:
    heads = [line for line in run[0].stdout.splitlines() if line.endswith("kube-proxy / nodeproxy")]
    assert [head.partition(",")[0] for head in heads] == [
        "On a real API server",
        "From the loopback server",
        "1",
    ]
