"""Experience of tasks with several turns: an engine that stays open between turns against one that reads all again.

    python benchmarks/multi_turn.py OLD NEW [--rounds 5] [--only keys attr-20q]

OLD and NEW are folders of the repository (`git clone`, `git checkout COMMIT`); up to 45c6c3e every turn prefilled
its whole history. Each side is a process with one thread that plays what the first step of `grpo` with the model `tiny`
plays (32 problems, eight episodes each), the same episodes every time, in turn with the other side. Printed: seconds of
processor time and their ratio, median with quartiles, how many tokens were read and sampled, and whether both sides
said the same tokens. `compose` has one turn: there both should take the same time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _machine import processor
from _sides import Side, serve

TASKS = ("keys", "attr-20q", "compose")
WARM_UP = 2


def experience(task: str) -> Callable[[], dict[str, Any]]:
    """Plays the episodes of the first step; what they hold."""
    from etude.core.registry import get_method
    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy
    from etude.tasks import resolve_task

    policy = LanguagePolicy.load("tiny", device="cpu")
    loop = LanguageLoop(get_method("grpo"), resolve_task(task), policy, seed=0, steps=1000)
    method = loop.method
    context = loop.context(method, loop.stream.split("step", 0).split("round", 0))
    problems = method.curriculum.choose(loop.gatherer.pool, method.problems, context.stream.split("problems"))

    def play() -> dict[str, Any]:
        work = getattr(policy, "work", {})
        work.clear()
        begun = time.process_time()
        episodes = method.experience.collect(problems, context)
        seconds = time.process_time() - begun
        return {
            "seconds": seconds, "episodes": len(episodes), "sampled": sum(e.action_count for e in episodes),
            "said": hashlib.sha256(json.dumps([e.tokens for e in episodes]).encode()).hexdigest(),
            "read": work.get("prefilled_tokens") or read_again(episodes),
        }  # fmt: skip

    return play


def read_again(episodes: list[Any]) -> int:
    """Tokens that are prefilled where every turn begins anew, equal views of a turn once."""
    views: set[tuple[int, tuple[int, ...]]] = set()
    for episode in episodes:
        tokens: list[int] = []
        for number, segment in enumerate(episode.segments):
            if any(segment.action_mask):
                views.add((number, tuple(tokens)))
            tokens += segment.tokens
    return sum(len(view) for _, view in views)


def compared(task: str, old: Path, new: Path, rounds: int) -> str:
    """A row of the table."""
    sides = [Side(old, __file__, "--serve", task), Side(new, __file__, "--serve", task)]
    taken: list[list[dict[str, Any]]] = [[], []]
    for i in range(rounds + WARM_UP):
        for which in (0, 1) if i % 2 else (1, 0):
            answer = sides[which].ask()
            if i >= WARM_UP:
                taken[which].append(answer)
    for side in sides:
        side.process.communicate()
    before, after = (np.array([x["seconds"] for x in answers]) for answers in taken)
    low, middle, high = np.percentile(before / after, (25, 50, 75))
    first, second = (answers[0] for answers in taken)
    return (
        f"| {task} | {first['episodes']} | {second['sampled']:,} | {first['read']:,} | {second['read']:,} "
        f"| {np.median(before):.2f} | {np.median(after):.2f} | {middle:.2f} ({low:.2f} to {high:.2f}) "
        f"| {'same' if first['said'] == second['said'] else 'not the same'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", type=Path)
    parser.add_argument("new", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--serve", choices=TASKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(lambda: experience(options.serve))
        return
    if not options.old or not options.new:
        parser.error("two checkouts are compared: OLD NEW")
    print(f"{processor()}, {options.rounds} rounds, seconds of processor time")
    print("| task | episodes | sampled | read, old | read, new | old | new | old / new: median (quartiles) | tokens |")
    print("|---|---|---|---|---|---|---|---|---|")
    for task in options.only:
        print(compared(task, options.old, options.new, options.rounds), flush=True)


if __name__ == "__main__":
    main()
