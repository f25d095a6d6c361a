"""The benchmark: how long loads, changes and audits take, and how much memory, at several sizes.

Every measurement is a process of its own in a network namespace of its own, so that neither memory nor tables mix.
It runs the product's own code from the decoder to libnftables; clocks are put around functions from outside.

``make bench`` runs it; docs/performance.md says what the figures mean.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
SOURCES = TESTS.parent / "operator"
"""The product of this checkout, whatever is installed."""


def own_process(module: str, *arguments: object) -> list[str]:
    """The command line that runs a module of the benchmark, whatever PYTHONPATH is."""
    path = f"PYTHONPATH={SOURCES}:{TESTS}"
    return ["env", path, "PYTHONDONTWRITEBYTECODE=1", sys.executable, "-m", module, *map(str, arguments)]
