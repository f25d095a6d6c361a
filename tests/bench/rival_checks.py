"""What is expected of nodeproxy where it is measured beside kube-proxy."""

from bench.plan import LARGE, LARGER, MIDDLE
from bench.rows import Row, megabytes, milliseconds
from bench.samples import Samples


def _ours(samples: Samples, topic: str, size: int, name: str, percent: float = 50) -> float | None:
    return samples.median((f"{topic} nodeproxy", size), name, percent=percent)


def _start(what: str, topic: str, size: int, most: float) -> Row:
    return Row(what, "≤", most, most, "s", lambda s: _ours(s, topic, size, "start s"))


def _update(size: int, percent: int, old: float, new: float) -> Row:
    return Row(
        f"one changed slice at {size:,}, request to kernel, p{percent}",
        "≤",
        old,
        new,
        "ms",
        lambda s: milliseconds(_ours(s, "cluster", size, "update s", percent)),
    )


def _burst(topic: str, words: str) -> tuple[Row, ...]:
    return (
        Row(
            f"{words}: lag, p99",
            "≤",
            3.0,
            3.0,
            "s",
            lambda s: _ours(s, topic, MIDDLE, "burst lag p99 s"),
        ),
        Row(
            f"{words}: all in force after the last",
            "≤",
            5.0,
            5.0,
            "s",
            lambda s: _ours(s, topic, MIDDLE, "burst convergence s"),
        ),
        Row(
            f"{words}: growth of memory, last third over first",
            "≤",
            10.0,
            10.0,
            "MB",
            lambda s: megabytes(_ours(s, topic, MIDDLE, "burst growth KiB")),
        ),
    )


ROWS = (
    _start("from an API server, 10,000 x 10: start to loaded", "cluster", MIDDLE, 6.0),
    _start("16,900 x 10: start to loaded", "cluster", LARGE, 10.0),
    _start("from the loopback server, 30,000 x 10: start to loaded", "loopback", LARGER, 18.0),
    _update(MIDDLE, 50, 40.0, 20.0),
    _update(MIDDLE, 99, 100.0, 50.0),
    _update(LARGE, 50, 40.0, 20.0),
    _update(LARGE, 99, 100.0, 50.0),
    Row(
        "peak memory from an API server, 10,000 x 10",
        "≤",
        160.0,
        160.0,
        "MB",
        lambda s: megabytes(_ours(s, "cluster", MIDDLE, "peak KiB", 100)),
    ),
    Row("idle CPU at 16,900", "≤", 0.2, 0.2, "%", lambda s: _ours(s, "cluster", LARGE, "idle CPU %")),
    *_burst("cluster", "changes by 8 writers"),
    *_burst("replay", "1,000 changes a second"),
)
"""Expectations; kube-proxy has none, its figures are there to compare."""
