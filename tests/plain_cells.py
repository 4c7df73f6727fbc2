"""A cell of an experiment that needs nothing but Python."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def square(job: tuple[int, str]) -> list[int]:
    """Of the number; the first that comes to 3 is lost with its process."""
    number, met = job
    if number == 3 and not Path(met).exists():
        Path(met).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return [number * number, os.getpid()]
