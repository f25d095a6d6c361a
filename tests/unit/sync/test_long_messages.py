"""Changes that are too long for one message, and that no single service port may be served late for.

In a user namespace the socket's buffer limits one message to the kernel; elsewhere nothing does, so each test runs in
one of its own.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[2]

_PROGRAM = """
import json, sys
sys.path[:0] = {paths!r}
import unit.sync.long_changes as changes
print(json.dumps(getattr(changes, {change!r})()))
"""


def in_user_namespace(change: str) -> dict[str, Any]:
    """What a function of ``long_changes`` returns when it is called in a user namespace."""
    program = _PROGRAM.format(paths=[str(TESTS.parent / "operator"), str(TESTS)], change=change)
    done = subprocess.run(
        ["unshare", "-Urn", sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "change",
    [
        "affinity_with_many_endpoints_loses_one",
        "chains_of_many_endpoints_are_replaced",
        "service_with_chains_of_many_endpoints_is_deleted",
        "many_services_are_deleted",
        "many_services_were_deleted_meanwhile",
        "service_with_many_endpoints_was_deleted_meanwhile",
    ],
)
def test_change_that_is_too_long_is_made_in_parts(change: str) -> None:
    """A part for each message that passes: nothing fails, all is as planned, and nothing remains."""
    found = in_user_namespace(change)
    if not found["too long"]:
        pytest.skip("with this libnftables, the change fits into one message")
    assert found["warnings"] == [], "it went well at once, not only when the table was read back"
    assert found["as planned"]
    assert found["slots"] == found["slots planned"], "tidying leaves nothing"
    assert found["again"] == 0, "what is in the kernel is what is known of it"
