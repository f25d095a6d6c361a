"""Which cells the collected tests assert, and which cells nobody does."""

from collections import Counter
from collections.abc import Callable, Iterable
from types import ModuleType

import pytest

from netns.matrix.cells import Cell, Row

Test = Callable[..., None]


def running_tests(module: ModuleType) -> list[Test]:
    """The test functions of a module; none if a mark of the whole module may keep it from running."""
    marks = getattr(module, "pytestmark", [])
    if not _runs(marks if isinstance(marks, list) else [marks]):
        return []
    return [value for name, value in vars(module).items() if name.startswith("test_") and callable(value)]


def asserted(tests: Iterable[Test]) -> Counter[Cell]:
    """How many times each cell is a case of a test that runs; what is marked to be skipped, or to fail, is not."""
    cells: Counter[Cell] = Counter()
    for test in tests:
        marks: list[pytest.Mark] = getattr(test, "pytestmark", [])
        if not _runs(marks):
            continue
        for mark in marks:
            if mark.name == "parametrize" and mark.args[0] == "row":
                for value in mark.args[1]:
                    cells.update(_row(value).cells if _row_runs(value) else ())
    return cells


def faults(tests: Iterable[Test], every: set[Cell]) -> list[str]:
    """A line for each cell without a case, with more than one, and for each case of no known cell."""
    cells = asserted(tests)
    return [
        *(f"no case: {cell}" for cell in sorted(every - cells.keys(), key=str)),
        *(f"{count} cases: {cell}" for cell, count in cells.items() if count > 1),
        *(f"unknown: {cell}" for cell in sorted(cells.keys() - every, key=str)),
    ]


def _runs(marks: Iterable[object]) -> bool:
    names = {getattr(mark, "name", "") for mark in marks}
    return not names & {"skip", "skipif", "xfail"}


def _row(value: object) -> Row:
    found = getattr(value, "values", (value,))[0]
    if not isinstance(found, Row):
        msg = f"not a row: {found!r}"
        raise TypeError(msg)
    return found


def _row_runs(value: object) -> bool:
    return _runs(getattr(value, "marks", ()))
