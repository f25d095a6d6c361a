"""Whether counts look as if chance had shared them out evenly."""

from collections.abc import Sequence

_CRITICAL = {1: 23.93, 2: 27.63, 9: 44.81}
"""Chi-square that chance exceeds once in a million times, by degrees of freedom."""


def chi_square(counts: Sequence[int]) -> float:
    """Pearson's statistic of counts against an even share."""
    share = sum(counts) / len(counts)
    return sum((count - share) ** 2 / share for count in counts)


def looks_even(counts: Sequence[int]) -> bool:
    """Whether an even share is credible; wrong once in a million times where it is one. For 2, 3 or 10 counts."""
    return chi_square(counts) < _CRITICAL[len(counts) - 1]
