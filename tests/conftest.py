"""Options of the tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden`` rewrites tests/golden from what is rendered now; look at the difference before committing."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what is rendered now")
