"""Medians, percentiles, ratios and the tables made of them."""

import time
from typing import Any

import pytest

from bench.checks import ROWS, is_new, judge
from bench.report import number, table, verdicts
from bench.samples import Samples, Spread, percentile
from bench.stages import Stages


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1), (25, 1), (50, 2), (51, 3), (75, 3), (76, 4), (99, 4), (100, 4)]
)
def test_a_percentile_is_a_figure_that_was_measured(percent: float, expected: float) -> None:
    assert percentile([4, 1, 3, 2], percent) == expected


@pytest.mark.parametrize(("figures", "percent"), [([], 50), ([1.0], 101), ([1.0], -1)])
def test_percentiles_of_nothing_or_beyond_all_are_refused(figures: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="no "):
        percentile(figures, percent)


def test_a_spread_is_the_median_and_the_range() -> None:
    assert Spread.of([5, 1, 2]) == Spread(2, 1, 5)


def test_a_list_of_figures_counts_with_its_percentile_and_several_figures_add_up() -> None:
    samples = Samples()
    samples.add(("load", 10), {"a": [1.0, 2.0, 9.0], "b": 10.0})
    samples.add(("load", 10), {"a": [3.0, 4.0, 5.0], "b": 20.0})
    assert samples.figures(("load", 10), "a") == [2.0, 4.0]
    assert samples.figures(("load", 10), "a", percent=100) == [9.0, 5.0]
    assert samples.median(("load", 10), "a", "b") == 18.0
    assert samples.median(("load", 11), "a") is None
    assert samples.sizes("load") == [10]
    assert samples.count(("load", 10)) == 2


@pytest.mark.parametrize(("version", "new"), [("1.0.6", False), ("1.0.9", False), ("1.1.0", True), ("1.1.3", True)])
def test_bounds_go_by_the_version_of_libnftables(version: str, *, new: bool) -> None:
    assert is_new(version) is new


def _load(**changed: Any) -> dict[str, Any]:
    figures = {"plan s": 0.5, "compare s": 0.2, "render s": 0.3, "apply s": 1.0, "total s": 4.0, "peak KiB": 1}
    return {**figures, "change s": [0.010], "change kernel s": [0.005], **changed}


def _of(samples: Samples, libnftables: str, words: str) -> Any:
    return next(verdict for verdict in judge(samples, libnftables) if words in verdict.what)


def test_a_figure_at_its_bound_meets_it_and_one_beyond_does_not() -> None:
    samples = Samples()
    samples.add(("load", 10_000), _load(**{"peak KiB": 150 * 1024}))
    assert _of(samples, "1.0.6", "planning").met
    assert _of(samples, "1.0.6", "peak memory of the process").met
    samples = Samples()
    samples.add(("load", 10_000), _load(**{"plan s": 0.6, "peak KiB": 150 * 1024 + 1}))
    assert not _of(samples, "1.0.6", "planning").met
    assert not _of(samples, "1.0.6", "peak memory of the process").met


def test_a_bound_may_differ_between_versions_of_libnftables() -> None:
    samples = Samples()
    samples.add(("load", 10_000), _load())
    assert _of(samples, "1.0.6", "event to commit").met
    assert not _of(samples, "1.1.3", "event to commit").met


def test_growth_compares_two_sizes_and_is_unknown_while_one_is_missing() -> None:
    samples = Samples()
    samples.add(("load", 10_000), _load())
    assert _of(samples, "1.1.3", "growth").measured is None
    samples.add(("load", 30_000), _load(**{"apply s": 4.5}))
    growth = _of(samples, "1.1.3", "growth")
    assert growth.measured == 4.5
    assert not growth.met


def test_another_layout_has_to_be_slower_by_a_factor() -> None:
    samples = Samples()
    samples.add(("load", 10_000), _load())
    samples.add(("anonymous", 10_000), {"apply s": 9.9, "change kernel s": [0.030]})
    assert _of(samples, "1.0.6", "one transaction").met
    assert not _of(samples, "1.1.3", "one transaction").met
    assert _of(samples, "1.0.6", "kernel part").measured == pytest.approx(6)
    assert not _of(samples, "1.1.3", "kernel part").met


def test_every_expectation_is_a_line_of_the_table() -> None:
    lines = list(verdicts(judge(Samples(), "1.1.3")))
    assert len(lines) == 2 + len(ROWS)
    assert all("not measured" in line for line in lines[2:])


def test_columns_are_aligned_first_to_the_left_others_to_the_right() -> None:
    assert list(table([["head", "1"], ["a", "1,000"]])) == ["head |     1", "-----|------", "a    | 1,000"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "0.012"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12,346")]
)
def test_figures_have_as_many_digits_as_mean_something(value: float, text: str) -> None:
    assert number(value) == text


class _Work:
    def outer(self) -> str:
        time.sleep(0.01)
        return self.inner() + self._hidden()

    def inner(self) -> str:
        time.sleep(0.02)
        return "i"

    def _hidden(self) -> str:
        return "h"


def test_a_stage_has_the_time_that_no_stage_within_it_takes() -> None:
    stages = Stages()
    stages.around(_Work, "outer", "out")
    stages.around(_Work, "inner", "in")
    began = time.perf_counter()
    assert _Work().outer() == "ih"
    whole = time.perf_counter() - began
    seconds = stages.seconds()
    assert seconds["out"] >= 0.01
    assert seconds["in"] >= 0.02
    assert sum(seconds.values()) <= whole
    assert sum(stages.cpu_seconds().values()) < 0.03, "sleeping takes no processor"
    stages.restore()
    _Work().outer()
    assert stages.seconds() == seconds


def test_clocks_around_a_class_leave_what_is_private_alone_and_go_when_told() -> None:
    before = dict(vars(_Work))
    stages = Stages()
    stages.around_methods(_Work, "work")
    assert vars(_Work)["_hidden"] is before["_hidden"]
    assert vars(_Work)["outer"] is not before["outer"]
    stages.restore()
    assert vars(_Work)["outer"] is before["outer"]


def test_a_generator_has_no_time_of_its_own() -> None:
    class Lazy:
        def numbers(self) -> Any:
            yield 1

    with pytest.raises(TypeError, match="numbers"):
        Stages().around(Lazy, "numbers", "lazy")
