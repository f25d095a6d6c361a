"""A control plane for tests, and for those around it what it takes to make network namespaces."""

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.control_plane import ControlPlane
from cluster.programs import Programs, programs
from netns import privileges

_STARTS = pytest.StashKey[list[float]]()
_NEED = {"control_plane", "cluster_programs"}


def pytest_configure(config: pytest.Config) -> None:
    """Become root of a user namespace unless root already, before anything starts a thread."""
    privileges.ensure()
    config.stash[_STARTS] = []


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is missing before the first test starts: that takes longer than a test may, and shows how it goes."""
    if session.config.option.collectonly or not any(_NEED & set(_fixtures(item)) for item in session.items):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        programs()
    else:
        with capture.global_and_fixture_disabled():
            programs()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Have a worker of pytest-xdist send what it knows of the starts."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["starts"] = session.config.stash[_STARTS]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker sent; one that crashed sent nothing."""
    node.config.stash[_STARTS] += getattr(node, "workeroutput", {}).get("starts", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how long starting took: it should stay below 20 s, but a busy machine is no fault of the tests."""
    if starts := config.stash[_STARTS]:
        terminalreporter.write_line(f"control planes started in {', '.join(f'{took:.1f} s' for took in starts)}")


def _fixtures(item: pytest.Item) -> list[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else []


@pytest.fixture(scope="session")
def cluster_programs() -> Programs:
    """The programs of the control plane, and kube-proxy."""
    return programs()


@pytest.fixture(autouse=True)
def _control_plane_lasts(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test after which a program of the shared control plane does not run fails, with that program's last words."""
    if "control_plane" in request.fixturenames:
        plane: ControlPlane = request.getfixturevalue("control_plane")
        yield
        plane.check()
    else:
        yield


@pytest.fixture(scope="session")
def control_plane(cluster_programs: Programs, pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    """A control plane that all tests of this process share; leave it running, and what others made alone."""
    with ControlPlane(cluster_programs) as plane:
        pytestconfig.stash[_STARTS].append(plane.started_in)
        yield plane
