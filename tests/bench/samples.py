"""Figures of repeated measurements, and what statistics make of them."""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple


class Spread(NamedTuple):
    """The median of some figures, and their range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Spread":
        """The spread of figures.

        Raises:
            statistics.StatisticsError: there are none.
        """
        return cls(statistics.median(figures), min(figures), max(figures))


def percentile(figures: Sequence[float], percent: float) -> float:
    """The smallest figure that ``percent`` % of all do not exceed (nearest rank).

    Raises:
        ValueError: there are none, or ``percent`` is not within 0..100.
    """
    if not figures or not 0 <= percent <= 100:
        msg = f"no {percent:g} % of {len(figures)} figures"
        raise ValueError(msg)
    ranked = sorted(figures)
    return ranked[max(0, -(-len(ranked) * percent // 100).__int__() - 1)]


class Samples:
    """The figures of all measurements, by topic and size."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, int], list[dict[str, Any]]] = {}

    def add(self, key: tuple[str, int], figures: dict[str, Any]) -> None:
        """Take the figures of one measurement."""
        self._taken.setdefault(key, []).append(figures)

    def count(self, key: tuple[str, int]) -> int:
        """How often something was measured."""
        return len(self._taken.get(key, ()))

    def sizes(self, topic: str) -> list[int]:
        """The sizes at which something was measured."""
        return sorted(size for name, size in self._taken if name == topic)

    def figures(self, key: tuple[str, int], *names: str, percent: float = 50) -> list[float]:
        """A figure of each measurement that has it.

        Args:
            key: topic and size.
            names: figures that are added up.
            percent: the percentile that counts where a figure is a list.
        """
        return [
            sum(_one(found[name], percent) for name in names)
            for found in self._taken.get(key, ())
            if all(name in found for name in names)
        ]

    def median(self, key: tuple[str, int], *names: str, percent: float = 50) -> float | None:
        """The median of :meth:`figures`; None: it was not measured."""
        found = self.figures(key, *names, percent=percent)
        return statistics.median(found) if found else None


def _one(figure: Any, percent: float) -> float:
    return percentile(figure, percent) if isinstance(figure, list) else float(figure)
