"""How many processor cores there are for this process."""

from __future__ import annotations

import os


def cores() -> int:
    """Those that the system lets it run on, where it says so."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
