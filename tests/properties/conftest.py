"""Time for long courses of events, seeds that can be given, and network namespaces."""

import os
import random
from pathlib import Path

import pytest

from unit.kernel.private_net import namespace, pytest_configure

from .profiles import FACTOR

__all__ = ["namespace", "pytest_configure"]

_HERE = Path(__file__).parent
_SECONDS = 600  # for a test; on a calm machine each takes well under a minute


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test here is hundreds of examples."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(_SECONDS * FACTOR))


@pytest.fixture
def chance() -> random.Random:
    """Random numbers, other ones in each run. ``PROPERTIES_SEED`` repeats a run whose seed was printed as it failed."""
    seed = int(os.environ.get("PROPERTIES_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"to repeat: PROPERTIES_SEED={seed}")
    return random.Random(seed)  # noqa: S311 - a course of events, nothing secret
