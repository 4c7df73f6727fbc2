"""Whether something slowed down: two checkouts of etude, step by step in turn, in the same minutes of the same machine.

    python benchmarks/two_states.py OLD NEW [--rounds 12] [--only dqn-1 sac-64-10]

OLD and NEW are folders of the repository (`git clone`, `git checkout COMMIT`). Of each thing, one process per checkout,
one thread, processor time: a GRPO step on `compose`, a PPO update of ten members on the cart-pole, a checkpoint of the
first, and blocks of steps and updates from a replay (`_replay_cases.py`, the last number is how many members). Printed:
the median of old / new over rounds, with quartiles; above 1 the new one is faster.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _machine import processor
from _sides import Side, serve

WARM_UP = 2


def token_step() -> Callable[[], float]:
    """A step of `grpo` on 16 problems, eight completions each; how many tokens it sampled."""
    loop = language_loop()
    return lambda: 16 * 8 * float(loop.step().metrics["completion_length"])


def language_loop() -> Any:
    from etude.core.registry import get_method
    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy
    from etude.tasks import resolve_task

    policy = LanguagePolicy.load("tiny", device="cpu")
    return LanguageLoop(get_method("grpo").replace(problems=16), resolve_task("compose"), policy, seed=0, steps=1000)


def control_step() -> Callable[[], float]:
    """A rollout and its update of `ppo`, ten members; how many environment steps they took."""
    from etude.core.population import Member
    from etude.core.registry import get_method
    from etude.loops.on_policy import OnPolicyLoop
    from etude.tasks.control.cartpole import cartpole

    method = get_method("ppo", "control")
    experience = method.experience
    loop = OnPolicyLoop(method, cartpole, [Member(seed) for seed in range(10)], 1000)

    def step() -> float:
        loop.step()
        return 10.0 * experience.environments * experience.steps

    return step


def checkpoint() -> Callable[[], float]:
    """A checkpoint of a run of `grpo` with AdamW's moments; how many bytes it has."""
    from etude.runtime import checkpoints

    loop, root, number = language_loop(), Path(tempfile.mkdtemp()), itertools.count()
    loop.step()

    def step() -> float:
        folder = checkpoints.write(root, next(number), loop.save)
        checkpoints.prune(root, 1)
        return float(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))

    return step


def replay_block(name: str, members: int, length: int) -> Callable[[], float]:
    """Some environment steps of every member and their updates; how many steps."""
    from _own_replay import built
    from _replay_cases import SPEED

    loop = built(SPEED[name], members, threads=1)[1]
    while loop.acted < SPEED[name].warmup:
        loop.step()
    loop.block = length

    def step() -> float:
        loop.step()
        return float(members * length)

    return step


CASES: dict[str, Callable[[], Callable[[], float]]] = {
    "GRPO step (tokens)": token_step, "PPO update (steps)": control_step, "checkpoint (bytes)": checkpoint,
    "dqn-1": lambda: replay_block("dqn", 1, 250), "dqn-10": lambda: replay_block("dqn", 10, 250),
    "sac-64-10": lambda: replay_block("sac-64", 10, 40), "sac-256-1": lambda: replay_block("sac-256", 1, 40),
    "td3-256-1": lambda: replay_block("td3-256", 1, 40),
}  # fmt: skip


def timed(case: str) -> Callable[[], dict[str, float]]:
    """Does a case: seconds of processor time of one more, and how much it did."""
    step = CASES[case]()

    def once() -> dict[str, float]:
        begun = time.process_time()
        amount = step()
        return {"seconds": time.process_time() - begun, "amount": amount}

    return once


def compared(case: str, old: Path, new: Path, rounds: int) -> str:
    """A row of the table."""
    sides = [Side(old, __file__, "--case", case), Side(new, __file__, "--case", case)]
    taken: list[list[dict[str, float]]] = [[], []]
    for i in range(rounds + WARM_UP):
        for which in (0, 1) if i % 2 else (1, 0):
            answer = sides[which].ask()
            if i >= WARM_UP:
                taken[which].append(answer)
    for side in sides:
        side.process.communicate()
    each = [np.array([x["seconds"] for x in answers]) for answers in taken]
    low, middle, high = np.percentile(each[0] / each[1], (25, 50, 75))
    amounts = [np.mean([x["amount"] for x in answers]) / np.median(t) for answers, t in zip(taken, each)]
    return f"| {case} | {amounts[0]:,.0f} | {amounts[1]:,.0f} | {middle:.3f} ({low:.3f} to {high:.3f}) |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", type=Path)
    parser.add_argument("new", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        serve(lambda: timed(options.case))
        return
    if not options.old or not options.new:
        parser.error("two checkouts are compared: OLD NEW")
    print(f"{processor()}, {options.rounds} rounds")
    print("| what | old, per second | new, per second | old / new in time: median (quartiles) |\n|---|---|---|---|")
    for case in options.only:
        print(compared(case, options.old, options.new, options.rounds), flush=True)


if __name__ == "__main__":
    main()
