"""What a second thread gives a step of `grpo`: seconds of one thread over seconds of two, step by step in turn.

Printed as JSON: for each case the median ratio and the ratio of each round, of seconds and of processor time. Wants a
machine with two idle cores.

    python benchmarks/two_threads.py [--cases short-10M long-10M] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from _arms import Arm, in_turn, ratios
from _cases import CASES, make_model
from _machine import processor

USUAL = ("short-0.8M", "short-10M", "long-10M")


def compare(name: str, rounds: int) -> dict[str, Any]:
    """One case: both arms take their steps in turn, from the same model."""
    with tempfile.TemporaryDirectory() as folder:
        model = str(make_model(CASES[name], Path(folder)))
        one, two = (Arm(sys.executable, "_own.py", name, model, threads=count) for count in (1, 2))
        in_turn([one, two], rounds)
        found = {clock: ratios(two, one, clock) for clock in ("seconds", "processor")}
        one.close(), two.close()
    return {k: {"median": round(statistics.median(v), 2), "rounds": [round(x, 2) for x in v]} for k, v in found.items()}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--cases", nargs="+", choices=list(CASES), default=list(USUAL))
    asked.add_argument("--rounds", type=int, default=5)
    options = asked.parse_args()
    found = {name: compare(name, options.rounds) for name in options.cases}
    print(json.dumps({"processor": processor(), "cases": found}, indent=1))


if __name__ == "__main__":
    main()
