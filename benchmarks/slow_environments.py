"""What episodes of several turns take whose environments are slow, in this process and in worker processes.

    python benchmarks/slow_environments.py [--rounds 3] [--workers 0 4 8 16 32] [--uneven] [--turns 3] [--seconds 0.05]

64 episodes of 3 turns of `tiny`, whose environments sleep 0.05 s at each step: 9.6 s of sleep, one after another.
Printed for each number of processes: seconds on the clock of the first time, which starts the processes, and of the
others, in turn with those of the other numbers (least, median and largest); the part of them that sampling takes,
which is processor time of this process; and whether all said the same, to the last bit. With `--uneven` answers take
0.05 s on average, exponentially distributed and the same each time, and each number of processes also plays by arrival
(`+`); there tokens alone are compared.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from dataclasses import dataclass, field

import numpy as np
from _machine import processor
from _waiting import Waiting


@dataclass
class Found:
    """What was measured with one number of processes: seconds on the clock, of the processor, and what was said."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    said: set[str] = field(default_factory=set)


def tasks_of(counts: list[int], usual: Waiting, uneven: bool) -> dict[str, Waiting]:
    """What is played, by the label of its row."""
    found = {str(count): usual.replace(workers=count, uneven=uneven) for count in counts}
    if uneven:
        found |= {f"{label} +": task.replace(by_arrival=True) for label, task in found.items() if task.workers}
    return found


def measured(tasks: dict[str, Waiting], rounds: int) -> dict[str, Found]:
    """Rounds of all of them, in turn."""
    import torch

    from etude.core.slots import Context
    from etude.core.streams import Stream
    from etude.experience.rollout import fresh, rollout
    from etude.policies.language import LanguagePolicy
    from etude.policies.sampling import Sampling

    torch.set_num_threads(1)
    policy = LanguagePolicy.load("tiny", device="cpu")
    found = {label: Found() for label in tasks}
    exact = not any(task.by_arrival for task in tasks.values())
    for _ in range(rounds + 1):
        for label, one in found.items():
            task = tasks[label]
            starts = fresh(task.problems("train"), 8, Stream(0))
            context, sampling = Context(task, policy, Stream(0)), Sampling(max_tokens=task.max_tokens)
            begun, used = time.monotonic(), time.process_time()
            episodes = rollout(starts, context, sampling)
            one.wall.append(time.monotonic() - begun)
            one.processor.append(time.process_time() - used)
            said = repr([(s.tokens, s.behaviour_logp if exact else 0) for e in episodes for s in e.segments])
            one.said.add(hashlib.sha256(said.encode()).hexdigest())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 4, 8, 16, 32])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--uneven", action="store_true")
    options = parser.parse_args()
    from etude.experience import worlds

    tasks = tasks_of(options.workers, Waiting(seconds=options.seconds, max_turns=options.turns), options.uneven)
    worlds.KEPT = len(tasks)
    found = measured(tasks, options.rounds)
    print(f"{processor()}, {options.rounds} rounds, seconds")
    print("| workers | first | least | median | largest | sampling | said |")
    print("|---|---|---|---|---|---|---|")
    said = next(iter(found.values())).said
    for label, one in found.items():
        later = one.wall[1:]
        print(
            f"| {label} | {one.wall[0]:.2f} | {min(later):.2f} | {np.median(later):.2f} | {max(later):.2f} "
            f"| {np.median(one.processor[1:]):.2f} | {'same' if one.said == said else 'not the same'} |"
        )


if __name__ == "__main__":
    main()
