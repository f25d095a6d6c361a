"""Tables of two columns: kube-proxy, nodeproxy, and how many times as much the one needs."""

from collections.abc import Iterator

from bench.report import number, table
from bench.rivals import NAMES
from bench.rows import KIB_PER_MB
from bench.samples import Samples

_SECONDS, _MILLISECONDS, _MEGABYTES, _PLAIN = ("s", 1.0), ("ms", 1000.0), ("MB", 1 / KIB_PER_MB), ("", 1.0)

_TITLES = (
    ("cluster", "On a real API server"),
    ("loopback", "From the loopback server"),
    ("replay", "1,000 changes a second from the loopback server"),
)
# label, figure, percentile, unit, whether a ratio means something
_LINES: tuple[tuple[str, str, float, tuple[str, float], bool], ...] = (
    ("start to loaded", "start s", 50, _SECONDS, True),
    ("  CPU time until then", "start CPU s", 50, _SECONDS, True),
    ("peak memory of the whole tree", "peak KiB", 100, _MEGABYTES, True),
    ("  its own", "own peak KiB", 100, _MEGABYTES, True),
    ("  children's", "children's peak KiB", 100, _MEGABYTES, False),
    ("one changed slice, request to kernel, p50", "update s", 50, _MILLISECONDS, True),
    ("  p99", "update s", 99, _MILLISECONDS, True),
    ("  from the API server's answer, p50", "update after answer s", 50, _MILLISECONDS, False),
    ("  request to answer, p50", "API server s", 50, _MILLISECONDS, False),
    ("idle CPU", "idle CPU %", 50, ("% of a core", 1.0), True),
    ("burst: changes a second", "burst changes a second", 50, _PLAIN, False),
    ("  overtaken by later ones", "burst overtaken", 50, _PLAIN, False),
    ("  lag, p50", "burst lag p50 s", 50, _SECONDS, True),
    ("  lag, p99", "burst lag p99 s", 50, _SECONDS, True),
    ("  lag, most", "burst lag p100 s", 50, _SECONDS, True),
    ("  lag, p50 in the first third", "burst lag early s", 50, _SECONDS, False),
    ("  lag, p50 in the last third", "burst lag late s", 50, _SECONDS, False),
    ("  all in force after the last", "burst convergence s", 50, _SECONDS, False),
    ("  CPU time", "burst CPU s", 50, _SECONDS, True),
    ("  memory before", "burst memory before KiB", 50, _MEGABYTES, True),
    ("  peak memory", "burst peak KiB", 50, _MEGABYTES, True),
    ("  memory after", "burst memory after KiB", 50, _MEGABYTES, True),
    ("  growth, last third over first", "burst growth KiB", 50, _MEGABYTES, False),
)


def figures(samples: Samples) -> Iterator[str]:
    """Lines of a table for each topic and size that was measured."""
    for topic, title in _TITLES:
        for size in sorted({size for name in NAMES for size in samples.sizes(f"{topic} {name}")}):
            rows = [[f"{title}, {size:,} x 10", *NAMES, f"{NAMES[0]} / {NAMES[1]}"]]
            for label, figure, percent, (unit, factor), compared in _LINES:
                found = [samples.median((f"{topic} {name}", size), figure, percent=percent) for name in NAMES]
                if found == [None, None]:
                    continue
                cells = ["-" if value is None else number(value * factor) for value in found]
                theirs, ours = found
                ratio = number(theirs / ours) if compared and theirs is not None and ours else ""
                rows.append([f"  {label}{f', {unit}' if unit else ''}", *cells, ratio])
            yield from table(rows)
            yield ""
