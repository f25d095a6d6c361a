"""A word now and then from a measurement that takes minutes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_DESCRIPTOR = "NODEPROXY_BENCH_PROGRESS"
_STANDARD_ERROR = 2


def say(text: str) -> None:
    """Tell whoever runs the benchmark; a measurement that is run by itself tells nobody."""
    descriptor = os.environ.get(_DESCRIPTOR)
    if descriptor is not None:
        os.write(int(descriptor), f"bench:   {text}\n".encode())


@contextmanager
def listening() -> Iterator[tuple[dict[str, str], int]]:
    """The environment of a process that may :func:`say` something, and the descriptor that it needs for that."""
    descriptor = os.dup(_STANDARD_ERROR)
    try:
        yield {**os.environ, _DESCRIPTOR: str(descriptor)}, descriptor
    finally:
        os.close(descriptor)
