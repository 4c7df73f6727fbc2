"""What episodes of several turns take whose environments are slow, in this process and in worker processes.

    python benchmarks/slow_environments.py [--rounds 3] [--workers 0 4 8 16 32]

64 episodes of 3 turns of `tiny`, whose environments sleep 0.05 s at each step: 9.6 s of sleep, one after another.
Printed for each number of processes: seconds on the clock of the first time, which starts the processes, and of the
others, in turn with those of the other numbers (least, median and largest); the part of them that sampling takes, which
is processor time of this process; and whether all said the same.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import time
from dataclasses import dataclass, field

import numpy as np
from _waiting import Waiting


@dataclass
class Found:
    """What was measured with one number of processes: seconds on the clock, of the processor, and what was said."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    said: set[str] = field(default_factory=set)


def measured(counts: list[int], rounds: int) -> dict[int, Found]:
    """Rounds of all of them, in turn."""
    import torch

    from etude.core.slots import Context
    from etude.core.streams import Stream
    from etude.experience.rollout import fresh, rollout
    from etude.policies.language import LanguagePolicy
    from etude.policies.sampling import Sampling

    torch.set_num_threads(1)
    policy = LanguagePolicy.load("tiny", device="cpu")
    found = {count: Found() for count in counts}
    for _ in range(rounds + 1):
        for count, one in found.items():
            task = Waiting(workers=count)
            starts = fresh(task.problems("train"), 8, Stream(0))
            context, sampling = Context(task, policy, Stream(0)), Sampling(max_tokens=task.max_tokens)
            begun, used = time.monotonic(), time.process_time()
            episodes = rollout(starts, context, sampling)
            one.wall.append(time.monotonic() - begun)
            one.processor.append(time.process_time() - used)
            said = repr([(s.tokens, s.behaviour_logp, s.reward) for e in episodes for s in e.segments])
            one.said.add(hashlib.sha256(said.encode()).hexdigest())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 4, 8, 16, 32])
    options = parser.parse_args()
    from etude.experience import worlds

    worlds.KEPT = len(options.workers)
    found = measured(options.workers, options.rounds)
    print(f"{platform.processor() or platform.machine()}, {options.rounds} rounds, seconds")
    print("| workers | first | least | median | largest | sampling | said |")
    print("|---|---|---|---|---|---|---|")
    said = next(iter(found.values())).said
    for count, one in found.items():
        later = one.wall[1:]
        print(
            f"| {count} | {one.wall[0]:.2f} | {min(later):.2f} | {np.median(later):.2f} | {max(later):.2f} "
            f"| {np.median(one.processor[1:]):.2f} | {'same' if one.said == said else 'not the same'} |"
        )


if __name__ == "__main__":
    main()
