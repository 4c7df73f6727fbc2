"""The claim of the reward model: pairs that it has not seen, against what their lengths alone tell.

Half of the rejected answers lack a step. Whoever takes the longer answer is right about them, and about half of the
others: guessing is not what a reward model has to beat.
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.core.episodes import Problem
from etude.core.streams import Stream
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs, variant
from etude.experiments.cells import Cell, spread, trained
from etude.tasks.language.preferences import Preferences

TASK, STEPS = Preferences(), 150
CHANGES = {"optimizer.lr": 5e-4}
PAIRS = 400
"""New problems that a reward model is asked about."""


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Share of unseen pairs whose chosen answer is scored higher: of all, and of those that are equally long."""
    method = variant("reward-model", CHANGES)
    told = spread(told_apart, [Cell("reward-model", method, TASK, seed, STEPS) for seed in seeds])
    asked = TASK.problems("test")[:PAIRS]
    level = [longer(p) == 0.5 for p in asked]
    every = [sum(t) / PAIRS for t in told]
    among = [sum(right for right, even in zip(t, level) if even) / sum(level) for t in told]
    by_length = sum(map(longer, asked)) / PAIRS
    return pairs(
        seeds, {"pairs told apart": every, "equally long pairs told apart": among},
        {"pairs told apart": [by_length] * len(seeds), "equally long pairs told apart": [0.5] * len(seeds)},
    )  # fmt: skip


def told_apart(cell: Cell) -> list[bool]:
    """Of each unseen pair whether a trained reward model scores the chosen answer higher."""
    from etude.core.slots import Context
    from etude.experience.data import Pairs
    from etude.rewards.model import values

    scorer = trained(cell)[0].policy
    asked = TASK.problems("test")[:PAIRS]
    scores = values(scorer, Pairs().collect(asked, Context(TASK, scorer, Stream(0))))
    return [chosen > rejected for chosen, rejected in zip(scores[::2], scores[1::2])]


def longer(problem: Problem) -> float:
    """1 if the chosen answer is the longer one, 0 if the rejected one is, 0.5 if neither."""
    chosen, rejected = (len(str(problem.info[which])) for which in ("chosen", "rejected"))
    return 0.5 if chosen == rejected else float(chosen > rejected)
