"""Cells of an experiment that need nothing but Python; as a program, two that last."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from etude.experiments.cells import spread


def square(job: tuple[int, str]) -> list[int]:
    """Of the number; the first that comes to 3 is lost with its process."""
    number, met = job
    if number == 3 and not Path(met).exists():
        Path(met).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return [number * number, os.getpid()]


def whose(job: int) -> int:
    """The process that does it."""
    return os.getpid()


def lasting(place: str) -> None:
    """Write down which process this is, and stay."""
    Path(place, str(os.getpid())).touch()
    time.sleep(600)


if __name__ == "__main__":
    spread(lasting, sys.argv[1:] * 2, workers=2)
