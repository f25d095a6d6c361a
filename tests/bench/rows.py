"""What an expectation is, and what comes of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bench.samples import Samples

Relation = Literal["≤", "≥"]
KIB_PER_MB = 1024.0


@dataclass(frozen=True)
class Row:
    """An expectation.

    Attributes:
        what: what is expected, in words.
        relation: of the figure to the bound.
        old: the bound with libnftables 1.0.x; None: nothing is expected of it.
        new: the bound from libnftables 1.1 on.
        unit: of figure and bound.
        measured: finds the figure; None: it was not measured.
    """

    what: str
    relation: Relation
    old: float | None
    new: float
    unit: str
    measured: Callable[[Samples], float | None]


@dataclass(frozen=True)
class Verdict:
    """A row, and what came of it; ``measured`` None: it was not measured."""

    what: str
    expected: str
    unit: str
    measured: float | None
    met: bool


def ratio(above: float | None, below: float | None) -> float | None:
    """How many times one figure is another; None: one of them was not measured."""
    return above / below if above is not None and below else None


def megabytes(kib: float | None) -> float | None:
    """KiB in MB."""
    return None if kib is None else kib / KIB_PER_MB


def milliseconds(seconds: float | None) -> float | None:
    """Seconds in milliseconds."""
    return None if seconds is None else seconds * 1000
