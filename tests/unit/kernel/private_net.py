"""A network namespace for a test, so that nothing it does reaches the machine's own network."""

from collections.abc import Iterator

import pytest

from netns import privileges
from netns.namespaces import Namespace


def pytest_configure() -> None:
    """Become root of a user namespace unless root already, before anything starts a thread."""
    privileges.ensure()


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    """A new namespace that the test's thread, and whatever it starts, is in."""
    found = Namespace("test")
    found.run("ip", "link", "set", "lo", "up")
    try:
        with found.enter():
            yield found
    finally:
        found.close()
