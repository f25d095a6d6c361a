"""How hard the tests of this folder try: ``HYPOTHESIS_PROFILE`` is ``quick`` (the default) or ``long``.

The settings are given to each test by :func:`effort` and never made the default, so that other tests keep theirs.
"""

import os

from hypothesis import HealthCheck, settings

QUICK, LONG = "quick", "long"
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or QUICK
FACTOR = {QUICK: 1, LONG: 20}[PROFILE]

# Slowness is the machine's, and big examples are meant.
_SUPPRESSED = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)

settings.register_profile(QUICK, deadline=None, derandomize=False, print_blob=True, suppress_health_check=_SUPPRESSED)
settings.register_profile(LONG, settings.get_profile(QUICK))


def effort(examples: int, steps: int = 20) -> settings:
    """Settings of a test.

    Args:
        examples: how many examples are tried under ``quick``; ``long`` tries 20 times as many.
        steps: how long a course of events may be, where a test is one; twice that under ``long``.
    """
    longer = 2 if PROFILE == LONG else 1
    return settings(settings.get_profile(PROFILE), max_examples=examples * FACTOR, stateful_step_count=steps * longer)
