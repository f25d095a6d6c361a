"""Runs a command in a network namespace of its own, so that nothing it does reaches the machine's network."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run(command: list[str], *, timeout: float = 60.0, stdin: str = "") -> str:
    """The command's output; as root no user namespace is made, since one limits the size of netlink messages.

    Raises:
        AssertionError: it failed; with what it said.
    """
    unshare = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'tests'}"}
    result = subprocess.run(
        [*unshare, "--", *command],
        input=stdin,
        text=True,
        capture_output=True,
        timeout=timeout,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, f"{command}: {result.stderr or result.stdout}"
    return result.stdout


def run_module(module: str, *arguments: str, timeout: float = 60.0) -> str:
    """The output of a module of the tests, run by this interpreter."""
    return run([sys.executable, "-W", "error", "-m", module, *arguments], timeout=timeout)
