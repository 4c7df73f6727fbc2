"""Where the time of a step goes, in the cases of `replay_speed_vs_sb3.py`: a table, in microseconds of processor time.

    python benchmarks/replay_profile.py [--cases sac-256 dqn] [--blocks 8]

Each row is the time in its own code alone: that of what it calls and has a row of its own is not counted. Columns are
cases with so many seeds; a step is one environment step of every member, with the updates that it is due. Of the blocks
of 250 steps the median is shown. Logs and checkpoints are not in it.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

from _own_replay import built
from _replay_cases import BLOCK, SPEED, Replayed

OTHER = "the loop itself"


class Clocks:
    """Processor time by place, each without what it calls."""

    def __init__(self) -> None:
        self.taken: dict[str, float] = {}
        self.inside, self.since = [OTHER], time.process_time()

    def _switch(self) -> None:
        now = time.process_time()
        self.taken[self.inside[-1]] = self.taken.get(self.inside[-1], 0.0) + now - self.since
        self.since = now

    def watch(self, owner: Any, name: str, place: str) -> None:
        """Count calls of an object's method as time of this place."""
        inner: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._switch()
            self.inside.append(place)
            try:
                return inner(*args, **kwargs)
            finally:
                self._switch()
                self.inside.pop()

        object.__setattr__(owner, name, timed)  # parts are frozen

    def read(self) -> dict[str, float]:
        """Seconds since the last reading."""
        self._switch()
        found, self.taken = self.taken, {}
        return found


def watched(loop: Any) -> Clocks:
    """Clocks on everything that a loop does."""
    updater, collector, clocks = loop.updater, loop.collector, Clocks()
    trainers = list(updater.trainers.values())
    places: list[tuple[Any, str, str]] = [
        (collector, "step", "collecting, the rest"), (collector, "_act", "acting"),
        (collector.environment, "step", "environment"), (collector.store, "push", "storing"),
        (loop.method.sampling, "draw", "sampling"), (updater, "_differentiate", "forward"),
        *((t.parameters, "differentiate", "backward") for t in trainers),
        *((t.stepper, "step", "optimizer") for t in trainers), (updater, "_follow", "targets"),
        (updater, "run", "updates, the rest"), (updater, "check_moved", "reports"), (loop, "report", "reports"),
    ]  # fmt: skip
    for owner, name, place in places:
        clocks.watch(owner, name, place)
    return clocks


def profiled(case: Replayed, seeds: int, blocks: int) -> dict[str, float]:
    """Microseconds of an environment step of all members, by place."""
    import torch

    torch.set_num_threads(1)
    loop = built(case, seeds, threads=1)[1]
    while loop.acted < case.warmup + BLOCK:
        loop.step()
    clocks, found = watched(loop), list[dict[str, float]]()
    for _ in range(blocks):
        clocks.read()
        loop.step()
        found.append(clocks.read())
    loop.close()
    return {k: 1e6 * statistics.median(f.get(k, 0.0) for f in found) / BLOCK for k in found[0]}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(SPEED), default=list(SPEED))
    parser.add_argument("--blocks", type=int, default=8)
    chosen = parser.parse_args()
    pairs = [(SPEED[name], seeds) for name in chosen.cases for seeds in SPEED[name].targets]
    columns = {f"{case.name}, {seeds}": profiled(case, seeds, chosen.blocks) for case, seeds in pairs}
    rows = list(dict.fromkeys(k for column in columns.values() for k in column))
    print(f"| us | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for row in sorted(rows, key=lambda k: -next(iter(columns.values())).get(k, 0.0)):
        print(f"| {row} | {' | '.join(f'{c.get(row, 0.0):.0f}' for c in columns.values())} |")
    print(f"| together | {' | '.join(f'{sum(c.values()):.0f}' for c in columns.values())} |")


if __name__ == "__main__":
    main()
