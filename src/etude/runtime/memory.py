"""What memory there is, and how it is kept and shown."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's malloc.h."""


def keep_freed() -> None:
    """Make glibc keep freed memory for the process instead of handing it back.

    Otherwise the tensors of every minibatch of a population are mapped, zeroed and unmapped again, which costs a tenth
    of its time. Does nothing where the C library has no such switch.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(M_TRIM_THRESHOLD, 1 << 30)


def available() -> int | None:
    """Bytes of memory that are free for this process, where the system says: a container may have less than it has."""
    known = [left for left in (_free(), allowed()) if left is not None]
    return min(known, default=None)


def _free() -> int | None:
    """Bytes that the machine has free."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        try:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            return None


def allowed(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Bytes that the control groups of this process still let it have; None where none of them has a limit.

    Args:
        groups: where they are mounted. own: which of them this process is in.
    """
    left: list[int] = []
    for line in own.read_text().splitlines() if own.is_file() else ():
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = groups / "memory" if controllers else groups
        limit, used = ("limit_in_bytes", "usage_in_bytes") if controllers else ("max", "current")
        place = base / name.lstrip("/")
        for group in (place, *(p for p in place.parents if p.is_relative_to(base))):
            try:
                most, taken = (int((group / f"memory.{file}").read_text()) for file in (limit, used))
            except (OSError, ValueError):  # 'max', or a group that is not seen from here
                continue
            left.append(max(0, most - taken + _cached(group)))
    return min(left, default=None)


def _cached(group: Path) -> int:
    """Bytes of files that a control group counts and gives back when memory is short."""
    try:
        found = dict(line.split(" ", 1) for line in (group / "memory.stat").read_text().splitlines())
        return int(found.get("total_inactive_file", found.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0


def shown(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
