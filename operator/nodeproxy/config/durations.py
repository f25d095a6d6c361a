"""Durations as Go writes them: ``30s``, ``1h0m0s``, ``1.5s``, ``100ms``."""

import re

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 2**63 / 1e9  # Go counts nanoseconds in 64 bits; Python's threads cannot wait longer either
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


def parse_duration(text: str) -> float:
    """A duration in seconds.

    Raises:
        ValueError: it is not a duration, or one of more than 292 years; a number needs a unit, but for 0.
    """
    trimmed = text.strip()
    sign, digits = (-1.0, trimmed[1:]) if trimmed.startswith("-") else (1.0, trimmed.removeprefix("+"))
    if digits == "0":
        return 0.0
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(digits))
    if not digits or _PART.sub("", digits) or seconds >= _LONGEST:
        msg = f"{text!r} is not a duration such as 30s or 1m30s"
        raise ValueError(msg)
    return sign * seconds
