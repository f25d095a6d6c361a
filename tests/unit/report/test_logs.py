"""Logs that can't be written stop nothing."""

import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest
import structlog
import yaml

from netns.namespaces import Namespace
from nodeproxy.cli import main as cli
from nodeproxy.report.journal import Journal
from nodeproxy.report.logs import LogFormat, configure_logs
from unit.cli.support import MANIFESTS, words
from unit.kernel.private_net import namespace, pytest_configure

from .restored_logs import restored_logs

__all__ = ["namespace", "pytest_configure", "restored_logs"]


class Closed(io.StringIO):
    """A stream that can't be written to."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def write(self, _: str) -> int:
        raise self._error

    def flush(self) -> None:
        raise self._error


def log_in_all_ways() -> None:
    """What this program logs, and what libraries log; both reach the same stream."""
    Journal().event("started", version="1")
    Journal().warning("check this", reason="a")
    structlog.get_logger("nodeproxy").error("failed", error="x")
    logging.getLogger("library").warning("said")
    try:
        raise RuntimeError("bad")
    except RuntimeError:
        logging.getLogger("library").exception("failed")


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize(
    "stream",
    [
        Closed(OSError(28, "No space left on device")),
        Closed(BrokenPipeError(32, "Broken pipe")),
        Closed(ValueError("I/O operation on closed file.")),
        None,
    ],
    ids=["full disk", "closed pipe", "closed file", "no stream"],
)
def test_line_that_cannot_be_written_is_lost_and_nothing_else(
    stream: TextIO | None, log_format: LogFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logs(log_format, verbose=True)
    monkeypatch.undo()
    log_in_all_ways()


def test_lines_come_again_when_the_stream_takes_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Filling(io.StringIO):
        full = True

        def write(self, text: str) -> int:
            if self.full:
                raise OSError(28, "No space left on device")
            return super().write(text)

    stream = Filling()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logs("json")
    log_in_all_ways()
    stream.full = False
    log_in_all_ways()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["started", "check this", "failed", "said", "failed"]
    assert "RuntimeError: bad" in lines[-1]["exception"]


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.02)


# Shell words that start the program given as "$@" with streams that can't be written to.
_STREAMS = {
    "full disk": 'exec "$@" >/dev/full 2>/dev/full',
    "all streams closed": 'exec "$@" <&- >&- 2>&-',
    "standard error closed": 'exec "$@" 2>&-',
    "closed pipe": 'exec "$@"',
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("stream", _STREAMS)
def test_run_serves_and_follows_changes_though_its_log_cannot_be_written(
    stream: str, log_format: str, namespace: Namespace, tmp_path: Path
) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "shop.yaml").write_text(yaml.safe_dump_all(MANIFESTS))
    reading, writing = os.pipe()
    os.close(reading)  # from here on, whoever writes gets EPIPE
    program = [sys.executable, "-m", "nodeproxy", *words("run", folder, f"--logging-format={log_format}")]
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}
    with subprocess.Popen(
        ["sh", "-c", _STREAMS[stream], "sh", *program, "--min-sync-period=0s", "-v=2"],
        stdin=subprocess.DEVNULL,
        env=environment,
        stderr=writing,
    ) as process:
        try:
            os.close(writing)

            def held(address: str) -> Callable[[], bool]:
                def is_held() -> bool:
                    assert process.poll() is None, "it must not end"
                    tables = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True)
                    return address in tables.stdout

                return is_held

            wait_for(held("10.96.0.11"))
            wait_for(held("fd00:96::10"))
            spec = {"clusterIP": "10.96.0.12", "ports": [{"port": 80}]}
            late = {**MANIFESTS[2], "metadata": {"name": "late", "namespace": "shop"}, "spec": spec}
            (folder / "bad.yaml").write_text("{ this is no YAML")
            (folder / "late.json").write_text(json.dumps(late))
            wait_for(held("10.96.0.12"))
            descriptors = [Path(f"/proc/{process.pid}/fd/{number}").readlink() for number in range(3)]
            assert not any(str(target).startswith("socket:") for target in descriptors), "it may be written to"
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
        finally:
            process.kill()
    assert namespace.run("nft", "list", "table", "ip6", "kube-proxy")
