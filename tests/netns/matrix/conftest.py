"""The one laboratory that all tests of the matrix share."""

from collections.abc import Iterator

import pytest

from netns.matrix.lab import Lab


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Built once; asks nothing before a test wants to know."""
    with Lab() as lab:
        yield lab
