"""TD3+BC, IQL and CQL on logs, etude against d3rlpy's `fit`: updates per second of processor time, and their limit.

Both arms have one configuration (`_offline_cases.py`) and the same logs, one thread, logs of their own and a checkpoint
in every turn, and take their turns in one run. d3rlpy trains one seed at a time, so its rate is the same for several.
`--fixed` lets both read the same rows in every update: what is left out is what drawing them costs.

    python benchmarks/offline_speed_vs_d3rlpy.py [--cases td3-bc-256] [--fixed] [--rounds 4] [--output FILE]

Cases that FILE has already are not measured again; delete it to begin anew.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import _limits
from _arms import Arm, machine, peer_python
from _offline_cases import SPEED, Fitted, written

FIXED = "--fixed"


def measured(case: Fitted, chosen: argparse.Namespace) -> dict[str, Any]:
    """One case: d3rlpy, and etude with each number of seeds that it has a target for."""
    with tempfile.TemporaryDirectory() as scratch:
        given = [case.name, str(written(Path(scratch))), *[FIXED] * chosen.fixed]
        peer = Arm(peer_python("d3rlpy"), "_peer_d3rlpy_fit.py", *given, threads=1)
        own = {n: Arm(sys.executable, "_own_offline.py", *given, f"--seeds={n}", threads=1) for n in case.targets}
        return _limits.compare(case, chosen.rounds, "updates", peer, own)


def about(chosen: argparse.Namespace) -> dict[str, Any]:
    """Where this is measured."""
    return {**machine("d3rlpy", ["torch"], ["d3rlpy", "torch"]), "fixed": chosen.fixed}


if __name__ == "__main__":
    _limits.main(__doc__, SPEED, about, measured, flags=(FIXED,))
