"""The figures as tables for people."""

from collections.abc import Iterable, Iterator, Sequence

from bench.rows import KIB_PER_MB, Verdict
from bench.samples import Samples, Spread

_SECONDS, _MILLISECONDS, _MEGABYTES, _PLAIN = ("s", 1.0), ("ms", 1000.0), ("MB", 1 / KIB_PER_MB), ("", 1.0)

_Line = tuple[str, tuple[str, ...], float, tuple[str, float]]  # label, figures, percentile, unit

_LOAD: tuple[_Line, ...] = (
    ("load: decode", ("decode s",), 50, _SECONDS),
    ("keep objects", ("store s",), 50, _SECONDS),
    ("plan", ("plan s",), 50, _SECONDS),
    ("compare", ("compare s",), 50, _SECONDS),
    ("render", ("render s",), 50, _SECONDS),
    ("apply", ("apply s",), 50, _SECONDS),
    ("plan to render, CPU time", ("plan CPU s", "compare CPU s", "render CPU s"), 50, _SECONDS),
    ("apply, CPU time", ("apply CPU s",), 50, _SECONDS),
    ("bytes to kernel, all", ("total s",), 50, _SECONDS),
    ("transactions", ("transactions",), 50, _PLAIN),
    ("longest one", ("longest transaction s",), 50, _MILLISECONDS),
    ("peak memory", ("peak KiB",), 50, _MEGABYTES),
    ("change: kernel, p50", ("change kernel s",), 50, _MILLISECONDS),
    ("kernel, CPU time, p50", ("change kernel CPU s",), 50, _MILLISECONDS),
    ("event to commit, p50", ("change s",), 50, _MILLISECONDS),
    ("event to commit, p99", ("change s",), 99, _MILLISECONDS),
)
_SECTIONS: tuple[tuple[str, str, tuple[_Line, ...]], ...] = (
    ("libraries", "Libraries alone", (("peak memory", ("peak KiB",), 50, _MEGABYTES),)),
    ("load", "Slot maps", _LOAD),
    (
        "added",
        "Memory that a load adds beyond the objects and the plan",
        (("at its peak", ("added KiB",), 50, _MEGABYTES), ("kept", ("kept KiB",), 50, _MEGABYTES)),
    ),
    (
        "audit",
        "Audit in which nothing differs",
        (("time", ("audit s",), 50, _SECONDS), ("memory it adds", ("audit added KiB",), 50, _MEGABYTES)),
    ),
    (
        "isolation",
        "Load in which seven Services are refused",
        (
            ("bytes to kernel, all", ("total s",), 50, _SECONDS),
            ("transactions, refused ones too", ("transactions",), 50, _PLAIN),
            ("peak memory", ("peak KiB",), 50, _MEGABYTES),
        ),
    ),
    (
        "folder",
        "nodeproxy run on a folder, a file for each Service",
        (
            ("start to complete", ("start s",), 50, _SECONDS),
            ("edit to kernel, p50", ("edit s",), 50, _MILLISECONDS),
            ("edit to kernel, slowest", ("edit s",), 100, _MILLISECONDS),
            ("peak memory", ("peak KiB",), 50, _MEGABYTES),
        ),
    ),
    ("always", "Slot maps, endpointChains: Always", _LOAD),
    (
        "anonymous",
        "Anonymous maps (kube-proxy's layout), one transaction",
        (
            ("apply", ("apply s",), 50, _SECONDS),
            ("apply, CPU time", ("apply CPU s",), 50, _SECONDS),
            ("memory it adds", ("added KiB",), 50, _MEGABYTES),
            ("change: kernel, p50", ("change kernel s",), 50, _MILLISECONDS),
            ("change: kernel, p99", ("change kernel s",), 99, _MILLISECONDS),
            ("kernel, CPU time, p50", ("change kernel CPU s",), 50, _MILLISECONDS),
        ),
    ),
    (
        "pieces",
        "Anonymous maps in pieces of 500",
        (
            ("apply", ("apply s",), 50, _SECONDS),
            ("apply, CPU time", ("apply CPU s",), 50, _SECONDS),
            ("memory it adds", ("added KiB",), 50, _MEGABYTES),
        ),
    ),
)


def figures(samples: Samples) -> Iterator[str]:
    """Lines of a table for each topic that was measured, a column for each size."""
    for topic, title, lines in _SECTIONS:
        sizes = samples.sizes(topic)
        if not sizes:
            continue
        counts = {samples.count((topic, size)) for size in sizes}
        often = f"median (range) of {'-'.join(map(str, sorted({min(counts), max(counts)})))}"
        rows = [[f"{title}; {often}", *(f"{size:,}" if size else "" for size in sizes)]]
        for label, names, percent, (unit, factor) in lines:
            cells = [
                _spread([f * factor for f in samples.figures((topic, size), *names, percent=percent)]) for size in sizes
            ]
            rows.append([f"  {label}{f', {unit}' if unit else ''}", *cells])
        yield from table(rows)
        yield ""


def verdicts(found: Iterable[Verdict]) -> Iterator[str]:
    """Lines of a table of expectations."""
    rows = [["expectation", "expected", "measured", ""]]
    for verdict in found:
        measured = "-" if verdict.measured is None else f"{number(verdict.measured)} {verdict.unit}"
        word = "not measured" if verdict.measured is None else "ok" if verdict.met else "MISSED"
        rows.append([verdict.what, f"{verdict.expected} {verdict.unit}", measured, word])
    yield from table(rows)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table, the first row as its head; words to the left, all other columns to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for index, row in enumerate(rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield " | ".join(cells).rstrip()
        if index == 0:
            yield "-|-".join("-" * width for width in widths)


def number(value: float) -> str:
    """A figure with three significant digits, and no fewer before the point than it has."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def _spread(values: Sequence[float]) -> str:
    spread = Spread.of(values)
    if spread.low == spread.high:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.low)}-{number(spread.high)})"
