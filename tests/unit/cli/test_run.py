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


def read_to_end(process: subprocess.Popen[str]) -> list[dict[str, object]]:
    """The log lines that are left; returns when the process has ended."""
    assert process.stderr is not None
    return [json.loads(line) for line in process.stderr]


def write_service(folder: Path, name: str, address: str) -> None:
    """In the way that lets nobody see half a file."""
    metadata = {"name": name, "namespace": "shop"}
    spec = {"clusterIP": address, "ports": [{"port": 80}]}
    (folder / f".{name}").write_text(yaml.safe_dump({**MANIFESTS[2], "metadata": metadata, "spec": spec}))
    (folder / f".{name}").rename(folder / f"{name}.yaml")


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(cli.__file__).parents[2]))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.timeout(30)
def test_signal_ends_run_with_0_and_leaves_the_rules(
    namespace: Namespace, folder: Path, number: signal.Signals
) -> None:
    with running(namespace, folder) as process:
        read_until(process, event="synced", family="IPv4")
        read_until(process, event="synced", family="IPv6")
        asked = time.monotonic()
        process.send_signal(number)
        events = read_to_end(process)
        assert process.wait(5) == 0
        assert time.monotonic() - asked < 3
        assert process.stdout is not None
        assert process.stdout.read() == ""
    assert {event["event"]: event.get("signal") for event in events} == {"stopping": number.name, "stopped": None}
    for table, address in (("ip", "10.96.0.10"), ("ip6", "fd00:96::10")):
        assert f"{address} . tcp . 80" in namespace.run("nft", "list", "map", table, "kube-proxy", "service-ips")


@pytest.mark.timeout(30)
def test_run_follows_changes_and_is_silent_otherwise(namespace: Namespace, folder: Path) -> None:
    with running(namespace, folder, "--min-sync-period=0s") as process:
        read_until(process, event="synced", family="IPv6")
        write_service(folder, "late", "10.96.0.12")
        events = read_until(process, event="synced", family="IPv4", changed=1)
        process.send_signal(signal.SIGTERM)
        events += read_to_end(process)
        assert process.wait(5) == 0
    assert events[0]["names"] == ["shop/late"]
    assert sorted(str(event["event"]) for event in events) == ["stopped", "stopping", "synced"]
    assert "10.96.0.12" in namespace.run("nft", "list", "set", "ip", "kube-proxy", "cluster-ips")


@pytest.mark.timeout(30)
def test_run_writes_nothing_a_second_time(namespace: Namespace, folder: Path) -> None:
    with running(namespace, folder) as process:
        read_until(process, event="synced", family="IPv6")
        process.kill()
    before = namespace.run("nft", "-a", "list", "ruleset")
    with running(namespace, folder) as process:
        events = read_until(process, event="in step", family="IPv6", level="info")
        process.send_signal(signal.SIGTERM)
        events += read_to_end(process)
    assert "synced" not in {event["event"] for event in events}
    assert namespace.run("nft", "-a", "list", "ruleset") == before


@pytest.mark.timeout(30)
def test_sync_that_had_nothing_to_do_is_logged_at_level_2(namespace: Namespace, folder: Path) -> None:
    """A Service that is new and not served is the reason for it here."""
    with running(namespace, folder, "--min-sync-period=0s", "-v=2") as process:
        read_until(process, event="synced", family="IPv6")
        write_service(folder, "headless", "None")
        events = read_until(process, event="in step", family="IPv6", level="debug")
    assert [(event["event"], event["family"], event["level"]) for event in events] == [
        ("in step", "IPv4", "debug"),
        ("in step", "IPv6", "debug"),
    ]


@pytest.mark.timeout(30)
def test_sync_that_had_nothing_to_do_is_not_logged_at_level_1(namespace: Namespace, folder: Path) -> None:
    with running(namespace, folder, "--min-sync-period=0s", "-v=1") as process:
        read_until(process, event="synced", family="IPv6")
        write_service(folder, "headless", "None")
        time.sleep(0.7)
        write_service(folder, "last", "10.96.0.12")
        events = read_until(process, event="synced", family="IPv4")
    assert [event["event"] for event in events] == ["synced"]


@pytest.mark.timeout(30)
def test_file_that_is_broken_at_the_start_is_left_out_and_nothing_is_said_to_stay(
    namespace: Namespace, folder: Path
) -> None:
    (folder / "broken.yaml").write_text("a: [")
    with running(namespace, folder) as process:
        problem = read_until(process, event="input problem")[-1]
        process.send_signal(signal.SIGTERM)
        read_to_end(process)
    assert (problem["origin"], problem["effect"]) == ("broken.yaml", "left out")
