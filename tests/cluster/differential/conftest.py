"""Which seeds, and the laboratory that looks at them."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.control_plane import ControlPlane
from cluster.differential.laboratory import Laboratory

_LINES = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options for runs by hand; they are there when this folder is named on the command line."""
    group = parser.getgroup("kube-proxy and nodeproxy on the same objects")
    group.addoption("--seeds", type=int, help="how many seeds, from 0 on (or DIFFERENTIAL_SEEDS; default: 10)")
    group.addoption("--seed", type=int, action="append", help="this seed alone; may be given several times")
    group.addoption("--self-check", action="store_true", help="kube-proxy on both sides: nothing may differ")


def seeds(config: pytest.Config) -> list[int]:
    """The seeds to look at."""
    chosen: list[int] | None = config.getoption("seed", None)
    if chosen:
        return chosen
    count = config.getoption("seeds", None)
    return list(range(int(os.environ.get("DIFFERENTIAL_SEEDS", "10")) if count is None else count))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``seed`` is a test for each of them."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", seeds(metafunc.config))


@pytest.fixture(scope="session")
def all_seeds(pytestconfig: pytest.Config) -> list[int]:
    """The seeds to look at."""
    return seeds(pytestconfig)


@pytest.fixture(scope="session")
def self_check(pytestconfig: pytest.Config) -> bool:
    """Whether kube-proxy runs on both sides."""
    return bool(pytestconfig.getoption("self_check", False))


@pytest.fixture(scope="module")
def laboratory(control_plane: ControlPlane, self_check: bool, pytestconfig: pytest.Config) -> Iterator[Laboratory]:
    """Both sides; a seed is looked at when first wanted."""
    lines = pytestconfig.stash.setdefault(_LINES, [])
    with Laboratory(control_plane, self_check=self_check, say=lines.append) as laboratory:
        yield laboratory


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Have a worker of pytest-xdist send what was seen."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["differential"] = session.config.stash.get(_LINES, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker sent."""
    node.config.stash.setdefault(_LINES, []).extend(getattr(node, "workeroutput", {}).get("differential", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what each seed showed."""
    for line in config.stash.get(_LINES, []):
        terminalreporter.write_line(line)
