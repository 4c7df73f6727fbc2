"""What is measured on; without etude, which chooses kernels for all processes that are started afterwards."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """What this machine's processor calls itself."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text().splitlines() if listed.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
