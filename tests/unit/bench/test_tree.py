"""Memory and processor time of a process and its children."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench import memory, tree

MEBIBYTE = 1024
_HOLDS = "x = bytearray({size} << 20); print('ready', flush=True); import sys; sys.stdin.read()"
_WITH_CHILD = (
    "import subprocess, sys; "
    "child = subprocess.Popen(['cat'], stdin=subprocess.PIPE); print('ready', flush=True); sys.stdin.read(); "
    "child.stdin.close(); child.wait()"
)
_FORKED = (
    "import os, sys, time; x = bytearray(80 << 20); r, w = os.pipe(); child = os.fork()\n"
    "if child == 0: os.close(w); os.read(r, 1); os._exit(0)\n"
    "print('ready', flush=True); sys.stdin.read(); os.close(w); os.waitpid(child, 0)"
)


@contextmanager
def _running(code: str) -> Iterator[int]:
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process.pid
        finally:
            process.stdin.close()
            process.wait(20)


def test_the_peak_is_the_most_that_was_there_at_a_time() -> None:
    with _running(_HOLDS.format(size=60)) as pid, tree.Watch(pid) as watch:
        peak = watch.peak()
        assert peak.total == peak.own == memory.peak(pid)
        assert peak.own > 60 * MEBIBYTE
        assert peak.children == 0


def test_children_count() -> None:
    with _running(_WITH_CHILD) as pid:
        assert len(list(tree.members(pid))) == 2
        with tree.Watch(pid) as watch:
            peak = watch.peak()
        assert peak.children > 0
        assert peak.total == peak.own + peak.children
        assert tree.resident(pid) > memory.resident(pid)


def test_a_copy_of_the_process_counts_with_what_it_does_not_share() -> None:
    with _running(_FORKED) as pid, tree.Watch(pid) as watch:
        peak = watch.peak()
        assert peak.own > 80 * MEBIBYTE
        assert 0 < peak.children < 40 * MEBIBYTE


def test_a_child_that_is_about_to_become_another_program_does_not_count() -> None:
    with _running(_FORKED) as pid:
        watch = tree.Watch(pid)
        watch._once()
        assert (watch._own, watch._children) == (memory.peak(pid), 0)


def test_a_peak_is_kept_when_a_child_has_ended() -> None:
    with tree.Watch(os.getpid(), 0.005) as watch:
        with _running(_HOLDS.format(size=70)):
            time.sleep(0.3)
        assert watch.peak().total > 70 * MEBIBYTE


def test_processor_time_is_that_of_the_process_and_of_its_children() -> None:
    before = tree.cpu_seconds(os.getpid())
    began = time.process_time()
    while time.process_time() - began < 0.2:
        pass
    assert tree.cpu_seconds(os.getpid()) - before >= 0.2
    before = tree.cpu_seconds(os.getpid())
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", busy], check=True, timeout=60)
    assert tree.cpu_seconds(os.getpid()) - before >= 0.4
    before = tree.cpu_seconds(os.getpid())
    with _running(f"{busy}\nprint('ready', flush=True); import sys; sys.stdin.read()"):
        assert tree.cpu_seconds(os.getpid()) - before >= 0.4, "one that is still there counts as well"


def test_sleeping_takes_next_to_none() -> None:
    with _running(_HOLDS.format(size=1)) as pid:
        before = tree.cpu_seconds(pid)
        time.sleep(0.5)
        assert tree.cpu_seconds(pid) - before < 0.1
