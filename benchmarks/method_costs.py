"""What a training step of each method costs, against its parent on the same problems.

Both take their steps in turn from the same policy, with a learning rate so small that it stays as it is; the ratio is
of processor time, the median over rounds. A method should cost at most 1.15 times its parent unless its mechanism asks
for more: `because` says what of that it has (more completions, more passes over each, rows that the parent skips
because comparing them teaches nothing, a reference, more optimizer steps).

    python benchmarks/method_costs.py [--methods maxrl lens] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from etude.core.edit import set_values
from etude.core.method import Method
from etude.core.registry import family, files, get_method
from etude.loops.language import LanguageLoop
from etude.policies.language import LanguagePolicy
from etude.tasks import resolve_task

TASK = "compose"
LIMIT = 1.15


def loop_of(method: Method, rounds: int) -> LanguageLoop:
    task: Any = resolve_task(TASK)
    policy = LanguagePolicy.load("tiny", device="cpu")
    return LanguageLoop(set_values(method, {"optimizer.lr": 1e-9}), task, policy, seed=0, steps=rounds + 1)


def timed(loop: LanguageLoop) -> tuple[float, dict[str, float]]:
    """Seconds of processor time of a step, and its metrics."""
    begun = time.process_time()
    metrics = loop.step().metrics
    return time.process_time() - begun, metrics


def reasons(method: Method, parent: Method, metrics: dict[str, dict[str, float]]) -> list[str]:
    """What a method's mechanism does that its parent's does not."""
    found = []
    mine, theirs = metrics["method"], metrics["parent"]
    if mine["rows"] > 1.05 * theirs["rows"]:
        found.append(f"{mine['rows'] / theirs['rows']:.2f}x completions")
    if method.epochs > parent.epochs:
        found.append(f"{method.epochs} passes")
    if mine.get("rows_skipped", 0.0) < theirs.get("rows_skipped", 0.0) - 0.05:
        found.append("learns from rows that the parent skips")
    if "reference_logp" in method.needs() and "reference_logp" not in parent.needs():
        found.append("a forward pass for a reference")
    if method.epochs * method.minibatches > parent.epochs * parent.minibatches:
        found.append(f"{method.epochs * method.minibatches} updates")
    return found


def cost(name: str, rounds: int) -> dict[str, Any]:
    method = get_method(name)
    parent = get_method(str(method.parent))
    loops = {"method": loop_of(method, rounds), "parent": loop_of(parent, rounds)}
    for loop in loops.values():
        loop.step()  # what is made once
    seconds: dict[str, list[float]] = {k: [] for k in loops}
    sums: dict[str, dict[str, float]] = {k: {} for k in loops}
    for _ in range(rounds):
        for k, loop in loops.items():
            taken, metrics = timed(loop)
            seconds[k].append(taken)
            for m in ("rows", "rows_skipped"):
                sums[k][m] = sums[k].get(m, 0.0) + metrics.get(m, 0.0) / rounds
    ratios = [a / b for a, b in zip(seconds["method"], seconds["parent"])]
    ratio, because = statistics.median(ratios), reasons(method, parent, sums)
    return {
        "method": name, "parent": parent.id, "ratio": round(ratio, 2), "because": because,
        "met": ratio <= LIMIT or bool(because), "by_round": [round(r, 2) for r in ratios],
    }  # fmt: skip


def main() -> None:
    chosen = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen.add_argument("--methods", nargs="*", default=None)
    chosen.add_argument("--rounds", type=int, default=5)
    chosen.add_argument("--output", type=Path, default=None, help="a file for the JSON as well")
    options = chosen.parse_args()
    torch.set_num_threads(1)
    names = options.methods or [n for n in files("methods") if family("methods", n) == "rlvr"]
    found = []
    for name in names:
        method = get_method(name)
        if method.row != "theory" and method.experience is not None and method.experience.samples:
            found.append(cost(name, options.rounds))
            print(json.dumps(found[-1]), flush=True)
    told = json.dumps({"benchmark": "method_costs", "limit": LIMIT, "methods": found}, indent=1)
    print(told)
    if options.output:
        options.output.write_text(told + "\n")
    sys.exit(int(not all(f["met"] for f in found)))


if __name__ == "__main__":
    main()
