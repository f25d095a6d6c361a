"""The memory of a process, as the kernel counts it (proc(5)); in KiB."""

import ctypes
import re
from pathlib import Path


def peak(pid: int | str = "self") -> int:
    """The most that a process has had resident since it began, or since :func:`reset_peak` (VmHWM)."""
    return _status(pid, "VmHWM")


def resident(pid: int | str = "self") -> int:
    """What a process has resident now (VmRSS)."""
    return _status(pid, "VmRSS")


def private(pid: int | str = "self") -> int:
    """What a process has resident now and shares with no other."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.findall(r"^Private_(?:Clean|Dirty):\s+(\d+) kB$", text, re.MULTILINE)
    if not found:
        msg = f"/proc/{pid}/smaps_rollup does not say what is private"
        raise LookupError(msg)
    return sum(map(int, found))


def reset_peak() -> None:
    """Let this process's peak begin anew from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def trim() -> None:
    """Give free memory of the C heap back, so that what is measured next can't hide in it."""
    ctypes.CDLL(None).malloc_trim(0)


def _status(pid: int | str, field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if found is None:
        msg = f"/proc/{pid}/status does not say {field}"
        raise LookupError(msg)
    return int(found[1])
