"""Two checkouts of etude in turn: a process of each that does one thing whenever it is asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Side:
    """A process of one checkout.

    Args:
        script: what it runs, with these arguments; it is to end in `serve`.
    """

    def __init__(self, checkout: Path, script: str, *arguments: str) -> None:
        single = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, **single, "PYTHONPATH": str(checkout.resolve() / "src")},
        )  # fmt: skip

    def ask(self) -> dict[str, Any]:
        """What it found doing it once more."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print("next", file=self.process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


def serve(make: Callable[[], Callable[[], dict[str, Any]]]) -> None:
    """What a side's process does: answer each line of standard input with what was found."""
    import torch

    import etude  # noqa: F401  # asks for reproducible kernels

    torch.set_num_threads(1)
    once = make()
    for _ in sys.stdin:
        print(json.dumps(once()), flush=True)
