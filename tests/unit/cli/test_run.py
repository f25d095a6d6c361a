"""``nodeproxy run`` as a process: it follows changes, ends when asked to, and leaves the rules."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from netns.namespaces import Namespace
from nodeproxy.cli import main as cli

from .support import MANIFESTS, words


@contextmanager
def running(namespace: Namespace, folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """``nodeproxy run`` in a namespace, ended in any case."""
    process = namespace.start(
        sys.executable,
        "-m",
        "nodeproxy",
        *words("run", folder, "--logging-format=json", *flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(5)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def read_until(process: subprocess.Popen[str], **wanted: object) -> list[dict[str, object]]:
    """Log lines up to the first with these values; fails when the log ends first."""
    found = []
    assert process.stderr is not None
    for line in process.stderr:
        found.append(json.loads(line))
        if wanted.items() <= found[-1].items():
            return found
    raise AssertionError(f"no line with {wanted} in {found}")


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(cli.__file__).parents[2]))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.timeout(30)
def test_signal_ends_run_with_0_and_leaves_the_rules(
    namespace: Namespace, folder: Path, number: signal.Signals
) -> None:
    with running(namespace, folder) as process:
        read_until(process, event="synced", family="IPv4")
        read_until(process, event="synced", family="IPv6")
        asked = time.monotonic()
        process.send_signal(number)
        events = read_until(process, event="stopped")
        assert process.wait(5) == 0
        assert time.monotonic() - asked < 3
        assert process.stdout is not None
        assert process.stdout.read() == ""
    assert [event["signal"] for event in events if event["event"] == "stopping"] == [number.name]
    for table, address in (("ip", "10.96.0.10"), ("ip6", "fd00:96::10")):
        assert f"{address} . tcp . 80" in namespace.run("nft", "list", "map", table, "kube-proxy", "service-ips")


@pytest.mark.timeout(30)
def test_run_follows_changes_and_is_silent_otherwise(namespace: Namespace, folder: Path) -> None:
    with running(namespace, folder, "--min-sync-period=0s") as process:
        read_until(process, event="synced", family="IPv6")
        late = {
            **MANIFESTS[2],
            "metadata": {"name": "late", "namespace": "shop"},
            "spec": {"clusterIP": "10.96.0.12", "ports": [{"port": 80}]},
        }
        (folder / ".late").write_text(yaml.safe_dump(late))
        (folder / ".late").rename(folder / "late.yaml")
        events = read_until(process, event="synced", family="IPv4", changed=1)
        process.send_signal(signal.SIGTERM)
        events += read_until(process, event="stopped")
        assert process.wait(5) == 0
    assert [event["event"] for event in events] == ["synced", "stopping", "stopped"]
    assert "10.96.0.12" in namespace.run("nft", "list", "set", "ip", "kube-proxy", "cluster-ips")


@pytest.mark.timeout(30)
def test_run_writes_nothing_a_second_time(namespace: Namespace, folder: Path) -> None:
    with running(namespace, folder) as process:
        read_until(process, event="synced", family="IPv6")
        process.kill()
    before = namespace.run("nft", "-a", "list", "ruleset")
    with running(namespace, folder) as process:
        read_until(process, event="started")
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        read_until(process, event="stopped")
    assert namespace.run("nft", "-a", "list", "ruleset") == before
