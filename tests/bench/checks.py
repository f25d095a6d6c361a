"""What the figures have to be, on a machine with two cores."""

import operator
from collections.abc import Callable, Iterator

from bench import rival_checks
from bench.plan import MIDDLE
from bench.rows import Relation, Row, Verdict, megabytes, milliseconds, ratio
from bench.samples import Samples

_HOLDS: dict[Relation, Callable[[float, float], bool]] = {"≤": operator.le, "≥": operator.ge}
_LARGE = 30_000

_OURS = ("load", MIDDLE)

ROWS = (
    Row(
        "apply of 10,000 x 10: anonymous maps in one transaction / slot maps",
        "≥",
        6.0,
        10.0,
        "times",
        lambda s: ratio(s.median(("anonymous", MIDDLE), "apply s"), s.median(_OURS, "apply s")),
    ),
    Row(
        "the same, anonymous maps in pieces of 500",
        "≥",
        None,
        8.0,
        "times",
        lambda s: ratio(s.median(("pieces", MIDDLE), "apply s"), s.median(_OURS, "apply s")),
    ),
    Row(
        "one changed Service at 10,000, kernel part: anonymous maps / slot maps",
        "≥",
        5.0,
        30.0,
        "times",
        lambda s: ratio(s.median(("anonymous", MIDDLE), "change kernel s"), s.median(_OURS, "change kernel s")),
    ),
    Row(
        "one changed Service at 10,000, event to commit, p50",
        "≤",
        20.0,
        5.0,
        "ms",
        lambda s: milliseconds(s.median(_OURS, "change s")),
    ),
    Row(
        "growth of the apply from 10,000 to 30,000",
        "≤",
        7.0,
        4.0,
        "times",
        lambda s: ratio(s.median(("load", _LARGE), "apply s"), s.median(_OURS, "apply s")),
    ),
    Row(
        "audit of an unchanged table of 10,000 x 10",
        "≤",
        0.5,
        0.5,
        "s",
        lambda s: s.median(("audit", MIDDLE), "audit s"),
    ),
    Row(
        "memory that it adds",
        "≤",
        20.0,
        20.0,
        "MB",
        lambda s: megabytes(s.median(("audit", MIDDLE), "audit added KiB")),
    ),
    Row(
        "load of 10,000 of which seven are refused / all are taken",
        "≤",
        2.0,
        2.0,
        "times",
        lambda s: ratio(s.median(("isolation", MIDDLE), "total s"), s.median(_OURS, "total s")),
    ),
    Row(
        "planning, comparing and rendering / applying, at 10,000",
        "≤",
        1.0,
        1.0,
        "times",
        lambda s: ratio(s.median(_OURS, "plan s", "compare s", "render s"), s.median(_OURS, "apply s")),
    ),
    Row(
        "memory that a load of 10,000 adds beyond the objects and the plan",
        "≤",
        20.0,
        15.0,
        "MB",
        lambda s: megabytes(s.median(("added", MIDDLE), "added KiB")),
    ),
    Row(
        "peak memory of the process at 10,000",
        "≤",
        150.0,
        150.0,
        "MB",
        lambda s: megabytes(s.median(_OURS, "peak KiB")),
    ),
    Row(
        "peak memory of nodeproxy run on a folder of 10,000",
        "≤",
        150.0,
        150.0,
        "MB",
        lambda s: megabytes(s.median(("folder", MIDDLE), "peak KiB")),
    ),
    Row(
        "nodeproxy run on a folder of 10,000, start to complete",
        "≤",
        8.0,
        8.0,
        "s",
        lambda s: s.median(("folder", MIDDLE), "start s"),
    ),
    Row(
        "edit of a file there to the kernel",
        "≤",
        100.0,
        100.0,
        "ms",
        lambda s: milliseconds(s.median(("folder", MIDDLE), "edit s")),
    ),
    *rival_checks.ROWS,
)


def is_new(libnftables: str) -> bool:
    """Whether a version of libnftables, such as ``1.0.6``, does without reading all chains before each change."""
    major, minor, *_ = (int(part) for part in libnftables.split("."))
    return (major, minor) >= (1, 1)


def judge(samples: Samples, libnftables: str) -> Iterator[Verdict]:
    """Compare what was measured with what is expected of this version of libnftables."""
    for row in ROWS:
        bound = row.new if is_new(libnftables) else row.old
        if bound is None:
            continue
        measured = row.measured(samples)
        met = measured is not None and _HOLDS[row.relation](measured, bound)
        yield Verdict(row.what, f"{row.relation} {bound:g}", row.unit, measured, met)
