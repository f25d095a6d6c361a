"""What is measured. Each of these is called once, in a process and a network namespace of its own."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import cluster, memory, spoilt
from bench.errors import BenchError
from bench.folder import folder
from bench.others import anonymous
from bench.proxy import Load, Proxy, Run, decoded
from nodeproxy.kube.addresses import Family
from nodeproxy.sync.proxier import Proxier

Figures = dict[str, Any]
"""Names to numbers: seconds, KiB, or lists of either."""

STAGES = ("decode", "store", "plan", "compare", "render", "apply", "read back")
CHANGE_PAUSE = 0.05  # seconds between changes: the process is idle when the next one comes
AUDIT_PAUSE = 0.2
_HOUR = 3601.0
_TRIES = 5


def load(services: int, endpoint_chains: str = "WhenAffinity", changes: int = 60, **more: Any) -> Figures:
    """A load from JSON bytes to the last commit, then changes of one Service each.

    Args:
        services: how many Services.
        endpoint_chains: ``Always``, or ``WhenAffinity``.
        changes: how many changes.
        more: further values of :class:`bench.proxy.Load`.
    """
    proxy = Proxy(Load(services, endpoint_chains=endpoint_chains, **more))
    with proxy.working(_patience(services)):
        spent, busy = proxy.stages.seconds(), proxy.stages.cpu_seconds()
        total = proxy.journal.syncs[-1].at - proxy.began - spent.pop("generate")
        figures: Figures = {f"{name} s": spent.get(name, 0.0) for name in STAGES}
        figures |= {f"{name} CPU s": busy.get(name, 0.0) for name in STAGES}
        figures |= {
            "total s": total,
            "peak KiB": memory.peak(),
            "transactions": len(proxy.runs),
            "longest transaction s": max(run.seconds for run in proxy.runs),
            "text characters": sum(run.size for run in proxy.runs),
        }
        figures |= _changes(proxy, changes)
    return figures


def _changes(proxy: Proxy, count: int) -> Figures:
    """Time of changes, each of one Service's EndpointSlice: one of its endpoints is another pod."""
    services, endpoints = proxy.load.services, proxy.load.endpoints
    commits: list[float] = []
    kernel: list[Run] = []
    for number in range(count):
        # Far apart, as changes are.
        of = number * 7919 % services
        change = decoded(cluster.endpoint_slice(of, endpoints, version=number + 1))
        time.sleep(CHANGE_PAUSE)
        commit, run = proxy.apply(change)
        commits.append(commit)
        kernel.append(run)
    return {
        "change s": commits,
        "change kernel s": [run.seconds for run in kernel],
        "change kernel CPU s": [run.cpu for run in kernel],
        "peak after changes KiB": memory.peak(),
    }


def added(services: int) -> Figures:
    """The memory that a load adds to a process that has the objects and the plan.

    ``added`` is the peak while it loads, ``kept`` what is still there afterwards: the memory of the table.
    """
    proxy = Proxy(Load(services))
    marks: Figures = {}
    original = Proxier.sync

    def watched(proxier: Proxier) -> None:
        if proxier.family is not Family.IPV4:
            original(proxier)
            return
        memory.trim()
        marks["before KiB"] = memory.resident()
        memory.reset_peak()
        original(proxier)
        marks["added KiB"] = memory.peak() - marks["before KiB"]
        memory.trim()
        marks["kept KiB"] = memory.resident() - marks["before KiB"]

    Proxier.sync = watched  # type: ignore[method-assign]
    try:
        with proxy.working(_patience(services)):
            return dict(marks)
    finally:
        Proxier.sync = original  # type: ignore[method-assign]


def audit(services: int, times: int = _TRIES) -> Figures:
    """The hourly audit of a table in which nothing differs: its time, and the memory that it adds while it lasts."""
    proxy = Proxy(Load(services))
    spent: list[float] = []
    memories: list[int] = []
    with proxy.working(_patience(services)):
        time.sleep(AUDIT_PAUSE)
        for _ in range(times):
            syncs, runs = len(proxy.journal.syncs), len(proxy.runs)
            memory.trim()
            before = memory.resident()
            memory.reset_peak()
            proxy.clock.advance(_HOUR)
            proxy.wait_for_syncs(syncs + len(proxy.families), _patience(services))
            results = [synced.result for synced in proxy.journal.syncs[syncs:]]
            if not all(result.full for result in results) or len(proxy.runs) != runs:
                msg = f"no audit that writes nothing: {len(proxy.runs) - runs} transactions"
                raise BenchError(msg)
            spent.append(sum(result.seconds for result in results))
            memories.append(memory.peak() - before)
            time.sleep(AUDIT_PAUSE)
    # What the first one leaves in the heap, those after it use again.
    return {"audit s": spent, "audit added KiB": memories[0]}


def isolation(services: int, refused: int = 7) -> Figures:
    """A load in which some Services are refused, half of them by nft and half by the kernel.

    Args:
        services: how many Services.
        refused: how many of them are refused.

    Raises:
        BenchError: others than these were left out.
    """
    numbers = spoilt.numbers(services, refused)
    with spoilt.templates(numbers) as folder:
        proxy = Proxy(Load(services, templates=Path(folder) / "templates", refused=refused))
        with proxy.working(_patience(services)):
            total = proxy.journal.syncs[-1].at - proxy.began - proxy.stages.seconds()["generate"]
            expected = {(cluster.namespace(number), cluster.name(number)) for number in numbers}
            found = {(name.namespace, name.service) for name in proxy.journal.refusals(Family.IPV4)}
            if found != expected:
                msg = f"refused: {sorted(found)} instead of {sorted(expected)}"
                raise BenchError(msg)
            return {"total s": total, "transactions": len(proxy.runs), "peak KiB": memory.peak()}


def libraries() -> Figures:
    """The memory of a process that has loaded the program and its libraries, and done nothing yet."""
    from nodeproxy.cli import main  # noqa: F401, PLC0415
    from nodeproxy.kernel.nft import Nft  # noqa: PLC0415

    version = Nft().version()
    return {"peak KiB": memory.peak(), "libnftables": version}


def live(**arguments: Any) -> Figures:
    """kube-proxy and nodeproxy on a real API server; see :func:`bench.live.live`."""
    from bench import live as found  # noqa: PLC0415  # the memory of other measures shall not have it

    return found.live(**arguments)


def loopback(**arguments: Any) -> Figures:
    """Both on a loopback server; see :func:`bench.loopback.loopback`."""
    from bench import loopback as found  # noqa: PLC0415

    return found.loopback(**arguments)


def replay(**arguments: Any) -> Figures:
    """Both on a loopback server, with many changes; see :func:`bench.loopback.replay`."""
    from bench import loopback as found  # noqa: PLC0415

    return found.replay(**arguments)


def _patience(services: int) -> float:
    """Seconds after which a load is given up."""
    return 120 + services / 40


MEASURES: dict[str, Callable[..., Figures]] = {
    "load": load,
    "added": added,
    "audit": audit,
    "anonymous": anonymous,
    "folder": folder,
    "isolation": isolation,
    "libraries": libraries,
    "live": live,
    "loopback": loopback,
    "replay": replay,
}
