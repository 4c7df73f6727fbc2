"""Environment steps per second of one worker and of two that learn on the same numbers, in turn in one run.

Both are runs of `--on hogwild` (one worker is the loop of one process, bit for bit), started together and asked for
training steps by turns, A B A B; the other one waits meanwhile. Prints one JSON.

    python benchmarks/hogwild.py --methods a3c n-step-q --rounds 8
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from _machine import processor

from etude.core.registry import get_method
from etude.runs.kinds import run_of
from etude.runs.training import Options
from etude.tasks import resolve_task

WORKERS = (1, 2)


def loop_of(name: str, task_name: str, workers: int, steps: int) -> Any:
    """A run of so many workers, built as `etude train` does."""
    task: Any = resolve_task(task_name)
    method = get_method(name, task.world)
    options = Options(steps=steps, seeds=1, on=f"hogwild:{workers}")
    run_of(method).prepare(method, task, options)
    return run_of(method).build(method, task, options)


def used(loop: Any) -> float:
    """Processor seconds of the workers so far."""
    ticks = 0
    for worker in loop.workers.pool.workers:
        fields = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(name: str, task: str, rounds: int, blocks: int) -> dict[str, Any]:
    """Rates of each number of workers, round by round, and their ratio."""
    loops = {workers: loop_of(name, task, workers, 250 * (rounds + 1) * blocks) for workers in WORKERS}
    rates: dict[int, list[float]] = {workers: [] for workers in WORKERS}
    costs: dict[int, list[float]] = {workers: [] for workers in WORKERS}
    try:
        for number in range(rounds + 1):  # the first is not counted
            for workers, loop in loops.items():
                acted, processor, begun = loop.acted, used(loop), time.perf_counter()
                for _ in range(blocks):
                    loop.step()
                seconds, steps = time.perf_counter() - begun, loop.acted - acted
                if number:
                    rates[workers].append(steps / seconds)
                    costs[workers].append(1e3 * (used(loop) - processor) / steps)
    finally:
        for loop in loops.values():
            loop.close()
    ratios = [two / one for one, two in zip(rates[1], rates[2])]
    return {
        "method": name, "steps_per_second": {w: statistics.median(r) for w, r in rates.items()},
        "by_round": {w: [round(x, 1) for x in r] for w, r in rates.items()},
        "processor_ms_per_step": {w: round(statistics.median(c), 3) for w, c in costs.items()},
        "ratio": statistics.median(ratios), "ratios": [round(r, 3) for r in ratios],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=["a3c", "n-step-q"])
    parser.add_argument("--task", default="cartpole")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--blocks", type=int, default=4, help="training steps of 250 environment steps in a turn")
    told = parser.parse_args()
    torch.set_num_threads(1)
    found = [measure(name, told.task, told.rounds, told.blocks) for name in told.methods]
    about = {"processor": processor(), "cores": os.cpu_count(), "load": os.getloadavg()}
    print(json.dumps({**about, "torch": torch.__version__, "task": told.task, "found": found}, indent=1))


if __name__ == "__main__":
    main()
