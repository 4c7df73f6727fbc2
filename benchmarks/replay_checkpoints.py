"""What a checkpoint takes with 10,000 and with 1,000,000 stored transitions of each member, in turn, in one run.

Each is a `sac` of 256-256 on the pendulum whose ring holds 1,000,000. Between two checkpoints 1,000 transitions of each
member are new, two checkpoints stay, and all that a run does for one is counted: writing, hashing, fsync, pruning.
Printed: medians of wall and processor time, bytes that were new, and the ratios; exit 1 if one is above 2.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from etude.core.population import Member
from etude.core.registry import get_method
from etude.loops.off_policy import OffPolicyLoop
from etude.runtime import checkpoints
from etude.tasks.control.pendulum import pendulum

FEW, MANY, NEW, CAPACITY, BOUND = 10_000, 1_000_000, 1_000, 1_000_000, 2.0


class Arm:
    """A run with so many transitions of each member."""

    def __init__(self, root: Path, stored: int, members: int) -> None:
        method: Any = get_method("sac")
        method = method.replace(experience=method.experience.replace(capacity=CAPACITY))
        self.root, self.step = root, 0
        self.loop = OffPolicyLoop(method, pendulum, [Member(k) for k in range(members)], 1000)
        store = self.loop.collector.store
        store.grid[:, :stored].uniform_()
        store.size, store.cursor, store.pushed = stored, stored % store.capacity, stored
        self.checkpoint()

    def go_on(self, count: int) -> None:
        """Store so many more rows of each member."""
        store = self.loop.collector.store
        grid = (store.members, store.environments)
        for _ in range(count // store.environments):
            seen, acted = torch.rand(*grid, store.widths[0]), torch.rand(*grid, store.widths[1])
            store.push(seen, acted, seen, acted[..., 0], torch.ones(grid), torch.zeros(grid))

    def checkpoint(self) -> dict[str, float]:
        """Seconds, processor seconds, and bytes that no checkpoint had before."""
        self.step += 1
        wall, processor = time.perf_counter(), time.process_time()
        made = checkpoints.write(self.root, self.step, self.loop.save)
        checkpoints.prune(self.root, keep=2)
        taken = {"seconds": time.perf_counter() - wall, "processor": time.process_time() - processor}
        new = sum(s.st_size for s in (p.stat() for p in made.rglob("*") if p.is_file()) if s.st_nlink == 1)
        return {**taken, "bytes": float(new)}


def measured(members: int, rounds: int, scratch: Path) -> dict[str, Any]:
    """Medians of both arms, and their ratios."""
    arms = {count: Arm(scratch / f"{members}-{count}", count, members) for count in (FEW, MANY)}
    found: dict[int, list[dict[str, float]]] = {count: [] for count in arms}
    for _ in range(rounds):
        for count, arm in arms.items():
            arm.go_on(NEW)
            found[count].append(arm.checkpoint())
    medians = {c: {k: statistics.median(r[k] for r in rows) for k in rows[0]} for c, rows in found.items()}
    ratios = {k: medians[MANY][k] / medians[FEW][k] for k in medians[FEW]}
    return {str(c): m for c, m in medians.items()} | {"ratio": ratios, "met": ratios["seconds"] <= BOUND}


def main() -> None:
    """Print the JSON; exit 1 if a checkpoint of many takes more than twice as long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", nargs="+", type=int, default=[1, 10])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        result = {f"{m} members": measured(m, chosen.rounds, Path(scratch)) for m in chosen.members}
    print(text := json.dumps(result, indent=1))
    if chosen.output:
        chosen.output.write_text(text + "\n")
    sys.exit(0 if all(row["met"] for row in result.values()) else 1)


if __name__ == "__main__":
    main()
