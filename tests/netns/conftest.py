"""Fixtures for tests with real packets."""

from netns import privileges


def pytest_configure() -> None:
    """Become root of a user namespace unless root already, before anything starts a thread."""
    privileges.ensure()
