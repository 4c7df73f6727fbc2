"""The claim of rl-compositionality: a slice of its study. All arms begin from the shipped model.

Reinforcement on chains of two functions is held against reinforcement on single ones, and against rejection fine-tuning
on the same chains; all are asked for chains of functions that none of them chained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from etude.core.kinds import TokenMethod
from etude.evaluation.language import Evaluation, evaluate_split
from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, pairs, variant
from etude.experiments.cells import Cell, by_label, spread, trained
from etude.tasks.language.compose_apart import ComposeApart, fault

CHAINS, SINGLE = ComposeApart(levels=(2,)), ComposeApart(levels=(1,))
STEPS = 40
CHANGES = {"problems": 16, "experience.size": 16, "optimizer.lr": 4e-4}
PROBLEMS, SAMPLES = 600, 2
REINFORCED, ALONE, REJECTED = "chains of two", "single functions", "rejection"
COMPARED = {
    "three functions, against single ones": ("level3", ALONE),
    "three functions, against rejection": ("level3", REJECTED),
    "two functions, against single ones": ("level2", ALONE),
    "four functions, against rejection": ("level4", REJECTED),
    "trained chains, against rejection": ("seen", REJECTED),
    "one function instead of all": ("one function", ALONE),
}
"""By measure: what is compared, and with which arm."""


@dataclass(frozen=True)
class Course:
    """What a run came to. `scores`: shares of right samples by level, of chains that training has ('seen'), and shares
    of samples by what is wrong with them; `completions`: how many were sampled and kept.
    """

    scores: dict[str, float]
    completions: float


def arms(seeds: Sequence[int]) -> list[Cell]:
    """Three runs of each seed."""
    made: dict[str, tuple[TokenMethod, ComposeApart]] = {
        REINFORCED: (variant("rl-compositionality", CHANGES), CHAINS),
        ALONE: (variant("rl-compositionality", CHANGES), SINGLE),
        REJECTED: (variant("rl-compositionality-rft", CHANGES), CHAINS),
    }
    return [Cell(label, m, task, seed, STEPS) for seed in seeds for label, (m, task) in made.items()]


def follow(cell: Cell) -> Course:
    """Train, and ask for chains of either half."""
    loop, metrics = trained(cell)
    asked = [
        evaluate_split(loop.policy, CHAINS, split, problems=PROBLEMS, samples=SAMPLES, seed=START)
        for split in ("test", "seen")
    ]
    return Course(shares(*asked), float(sum(line["rows"] for line in metrics)))


def shares(test: Evaluation, seen: Evaluation) -> dict[str, float]:
    """What is right by level and wrong in which way, of the half that training does not chain; right of the other."""
    levels = [row[0].problem.level for row in test.episodes]
    found = {
        level: float(test.correct[[own == level for own in levels]].mean()) for level in dict.fromkeys(sorted(levels))
    }
    faults = [fault(e.problem, e.completion) for row in test.episodes for e in row]
    wrong = {
        name: float(np.mean([own == name for own in faults])) for name in ("one function", "too few", "wrong step")
    }
    return {**found, **wrong, "seen": float(seen.correct.mean())}


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Three arms from the same start."""
    work = arms(seeds)
    begun = follow(replace(work[0], label="start", seed=START, steps=0))
    found = by_label([cell.label for cell in work], spread(follow, work))
    arm = {measure: [c.scores[name] for c in found[REINFORCED]] for measure, (name, _) in COMPARED.items()}
    baseline = {measure: [c.scores[name] for c in found[other]] for measure, (name, other) in COMPARED.items()}
    start = {measure: [begun.scores[name]] * len(seeds) for measure, (name, _) in COMPARED.items()}
    return pairs(seeds, arm, baseline, start=start)
