"""What a training step of each method costs, against its parent on the same problems.

Both take their steps in turn from the same policy, with a learning rate so small that it stays as it is; the ratio is
of processor time, the median over rounds. `rows` is how many completions a step of the method learns from or samples
against its parent's, `passes` how often each is passed over, both part of what the method is; `own` is the ratio that
is left per completion and pass.

    python benchmarks/method_costs.py [--methods maxrl lens] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
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


def timed(loop: LanguageLoop) -> tuple[float, float]:
    """Seconds of processor time of a step, and its rows."""
    begun = time.process_time()
    rows = loop.step().metrics.get("rows", 1.0)
    return time.process_time() - begun, rows


def cost(name: str, rounds: int) -> dict[str, Any]:
    method = get_method(name)
    parent = get_method(str(method.parent))
    loops = {"method": loop_of(method, rounds), "parent": loop_of(parent, rounds)}
    for loop in loops.values():
        loop.step()  # what is made once
    found: dict[str, list[tuple[float, float]]] = {k: [] for k in loops}
    for _ in range(rounds):
        for k, loop in loops.items():
            found[k].append(timed(loop))
    ratios = [a[0] / b[0] for a, b in zip(found["method"], found["parent"])]
    rows = sum(r for _, r in found["method"]) / sum(r for _, r in found["parent"])
    passes = method.epochs / parent.epochs
    ratio = statistics.median(ratios)
    own = ratio / rows / max(1.0, passes)
    return {
        "method": name, "parent": parent.id, "ratio": round(ratio, 2), "rows": round(rows, 2), "passes": passes,
        "own": round(own, 2), "met": own <= LIMIT, "by_round": [round(r, 2) for r in ratios],
    }  # fmt: skip


def main() -> None:
    chosen = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen.add_argument("--methods", nargs="*", default=None)
    chosen.add_argument("--rounds", type=int, default=5)
    options = chosen.parse_args()
    torch.set_num_threads(1)
    names = options.methods or [n for n in files("methods") if family("methods", n) == "rlvr"]
    found = []
    for name in names:
        if not (get_method(name).claim and resolve_task(get_method(name).claim.task).loop == "control"):  # type: ignore[union-attr]
            found.append(cost(name, options.rounds))
            print(json.dumps(found[-1]), flush=True)
    print(json.dumps({"benchmark": "method_costs", "limit": LIMIT, "methods": found}, indent=1))


if __name__ == "__main__":
    main()
