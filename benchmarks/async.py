"""Steps per second of GRPO with sampling beside the update, against the loop that takes turns.

    python benchmarks/async.py [--rounds 3] [--steps 4] [--even] [--without "local, 2 threads"]

16 problems x 8 answers of a random Llama of 2 layers of 64, answers of 8 to 256 tokens (log-normal), 20 ms of waiting
for each verification, eight at a time in every arm. Arms take their steps in turn, `--steps` at a time, of which the
first is not counted: it may find rows that were gathered while another arm was measured. What is still in the air is
waited for before the next arm begins.

    local, 1 thread / 2 threads         the loop of one process
    processes:1, bound 0                separated, and synchronous
    processes:2, bound 0                two samplers, one for each core; the learner waits meanwhile
    processes:1, bound 1 / processes:2, bound 1

The best of the first four that uses both cores is the baseline. Printed: median seconds of a step with the smallest and
largest, ratios of medians, the share of two cores that a loop of one process leaves idle (threads that wait for each
other at a barrier count as busy), and what the halves of a separated synchronous step take, which bound the gain of
overlap by (g + u) / max(g, u), where g is sampling and u is verification and update.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from _async_task import LongTailed, Waits
from _machine import processor

from etude.core.registry import get_method
from etude.experience.groups import Groups
from etude.experience.samplers import Samplers
from etude.loops.language import LanguageLoop
from etude.objectives.decoupled import DecoupledSurrogate
from etude.runs.samplers import load_policy, samplers_of
from etude.runs.training import Options

ARMS = {
    "local, 1 thread": ("local", 0, 1),
    "local, 2 threads": ("local", 0, 2),
    "processes:1, bound 0": ("processes", 0, 1),
    "processes:2, bound 0": ("processes:2", 0, 1),
    "processes:1, bound 1": ("processes", 1, 1),
    "processes:2, bound 1": ("processes:2", 1, 1),
}
"""Where it samples, the bound, threads of each process."""
SEPARATED = "processes:1, bound 0"
SYNCHRONOUS = ("local, 2 threads", "processes:2, bound 0")
"""What uses both cores without a bound."""


@dataclass
class Arm:
    """A loop, and what its steps took: seconds on the clock, of this process's processors, of sampling; rewards."""

    loop: LanguageLoop
    threads: int
    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    sampling: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    @property
    def idle(self) -> float:
        """Share of two cores that this process left idle."""
        return round(1 - sum(self.busy) / sum(self.seconds) / 2, 2)

    def run(self, steps: int) -> None:
        """Take some steps, of which the first is not measured."""
        torch.set_num_threads(self.threads)
        for number in range(steps):
            began, worked = time.perf_counter(), time.process_time()
            metrics = self.loop.step().metrics
            took, busy = time.perf_counter() - began, time.process_time() - worked
            self.rewards.append(metrics["reward"])
            if number:
                self.seconds.append(took)
                self.busy.append(busy)
        for flight in [] if self.loop.ahead is None else self.loop.ahead.flights.values():
            while flight.asked is not None and not flight.asked.there:
                time.sleep(0.01)


def arm(on: str, bound: int, threads: int, even: bool, steps: int) -> Arm:
    """An arm as it begins."""
    method: Any = get_method("grpo").replace(
        problems=16, experience=Groups(size=8), objective=DecoupledSurrogate(), rewards=(Waits(),)
    )
    torch.set_num_threads(threads)
    options, task = Options(model="blank:2x64", device="cpu", on=on, bound=bound), LongTailed(even=even)
    policy = load_policy(options)
    samplers = samplers_of(method, options, task, policy)
    made = Arm(LanguageLoop(method, task, policy, seed=0, steps=steps, samplers=samplers, bound=bound), threads)
    if samplers is not None:
        _timed(samplers, made)
    return made


def _timed(samplers: Samplers, arm: Arm) -> None:
    """Write down how long a step waits for its rows."""
    play = samplers.play

    def timed(*args: Any) -> Any:
        began = time.perf_counter()
        found = play(*args)
        arm.sampling.append(time.perf_counter() - began)
        return found

    samplers.play = timed  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--even", action="store_true", help="all answers equally long")
    parser.add_argument("--without", nargs="*", default=[], choices=[*SYNCHRONOUS], help="arms that are left out")
    given = parser.parse_args()
    arms = {name: arm(*how, given.even, 10_000) for name, how in ARMS.items() if name not in given.without}
    try:
        for _ in range(given.rounds):
            for each in arms.values():
                each.run(given.steps)
    finally:
        for each in arms.values():
            if each.loop.samplers is not None:
                each.loop.samplers.close()
            if each.loop.ahead is not None:
                each.loop.ahead.close()
    median = {name: statistics.median(each.seconds) for name, each in arms.items()}
    best = min([name for name in SYNCHRONOUS if name in arms], key=median.__getitem__)
    separated = arms[SEPARATED]
    g = statistics.median(separated.sampling)
    u = median[SEPARATED] - g
    told = {
        name: {
            "seconds": round(median[name], 3), "smallest": round(min(each.seconds), 3),
            "largest": round(max(each.seconds), 3), "steps": len(each.seconds),
            "over_separated": round(median[SEPARATED] / median[name], 2),
            "over_best": round(median[best] / median[name], 2), "last_reward": round(each.rewards[-1], 3),
            **({} if each.loop.samplers else {"idle_share_of_two_cores": each.idle}),
        }
        for name, each in arms.items()
    }  # fmt: skip
    found = {
        "processor": processor(), "load": round(os.getloadavg()[0], 1), "torch": torch.__version__,
        "answers": "even" if given.even else "log-normal", "arms": told, "baseline": best, "sampling": round(g, 3),
        "verification_and_update": round(u, 3), "limit_of_overlap": round((g + u) / max(g, u), 2),
    }  # fmt: skip
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
