"""What a batch costs with 1,000 and with 10,000,000 stored rows of each member, in turn, in one run.

A ring of 10,000,000 transitions of the pendulum (10 numbers each), of which so many are there; beside it a ring that is
no larger than what it holds. Batches of 256: drawn uniformly with one step and with three, and by surprise, which takes
down the errors of each batch too. Random numbers are counted in. Printed: medians of processor time in microseconds,
and the ratios; exit 1 if one of the same ring is above 1.5.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from etude.core.population import Member, Population
from etude.experience.prioritized import PrioritizedRows
from etude.experience.sampling import NStep, OneStep, UniformRows
from etude.experience.store import Store
from etude.experience.stretches import LENGTH, Stretches

FEW, MANY, BOUND, BATCH = 1_000, 10_000_000, 1.5, 256
WAYS: dict[str, Callable[[], Any]] = {
    "uniform, one step": lambda: UniformRows(batch=BATCH, horizon=OneStep()),
    "uniform, three steps": lambda: UniformRows(batch=BATCH, horizon=NStep(n=3)),
    "by surprise": lambda: PrioritizedRows(batch=BATCH, horizon=OneStep()),
}


class Arm:
    """A ring with so many rows, and what draws of it."""

    def __init__(self, way: str, capacity: int, rows: int, members: int) -> None:
        self.part = WAYS[way]().bind()
        self.store = Store(members, 1, capacity, (3,), 1)
        self.store.grid[:, :rows].uniform_()
        self.store.grid[:, :rows, -2:] = torch.tensor([1.0, 0.0])
        self.store.size, self.store.cursor, self.store.pushed = rows, rows % self.store.capacity, rows
        self.stretches, self.drawn = Stretches(Population([Member(k) for k in range(members)]), "learn"), 0
        self.go()

    def go(self) -> float:
        """Processor seconds of a batch, the mean over a stretch of random numbers."""
        begun = time.process_time()
        for _ in range(LENGTH):
            batch = self.part.draw(self.store, self.stretches.at(self.drawn))
            if self.part.reads_errors:
                self.part.learn(batch, batch.rewards.abs())
            self.drawn += 1
        return (time.process_time() - begun) / LENGTH


def compare(way: str, few: int, many: int, members: int, rounds: int) -> dict[str, float]:
    """Medians of all arms, their rounds in turn, in microseconds; and both ratios."""
    arms = {
        "few": Arm(way, many, few, members), "many": Arm(way, many, many, members),
        "few in a small ring": Arm(way, few, few, members),
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, arm in arms.items():
            times[name].append(arm.go())
    found = {name: 1e6 * statistics.median(each) for name, each in times.items()}
    ratios = {
        "ratio": found["many"] / found["few"],
        "ratio to a small ring": found["many"] / found["few in a small ring"],
    }
    return {k: round(v, 2) for k, v in (found | ratios).items()}


def main() -> None:
    """Print the JSON; exit 1 if a batch of many costs more than it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--few", type=int, default=FEW)
    parser.add_argument("--many", type=int, default=MANY)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    result = {way: compare(way, chosen.few, chosen.many, chosen.members, chosen.rounds) for way in WAYS}
    print(text := json.dumps(result, indent=1))
    if chosen.output:
        chosen.output.write_text(text + "\n")
    sys.exit(0 if all(each["ratio"] <= BOUND for each in result.values()) else 1)


if __name__ == "__main__":
    main()
