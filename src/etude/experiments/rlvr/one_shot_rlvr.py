"""The claim of 1-shot RLVR: a few dozen problems, and the one of them whose reward moved most while they were learned.

The base model knows every function and is right in a third of the pairs of them, and nearly always once in eight
samples: what one problem can teach is to do so every time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from etude.core.kinds import TokenMethod
from etude.curricula.epochs import EpochMeans, Recorded
from etude.evaluation.pairs import Pair
from etude.evaluation.saturation import Saturation, saturation
from etude.experiments.arms import START, pairs, variant
from etude.experiments.cells import spread
from etude.experiments.watched import FewCompose, Job, Run, look, run, scores

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop

STEPS, PROBLEMS, EVERY = 30, 16, 5
TASK = FewCompose(levels=(2,), size=64)
"""A pool that the steps pass over seven times."""
CHANGES = {"problems": PROBLEMS, "optimizer.lr": 2e-4}
SIDE = {"problems": 100, "samples": 2}
"""Of the evaluations on the way."""
FIRST = "first of the ranking"


def pool() -> TokenMethod:
    """All problems, by the method's own loss and temperature, with a record of what each was worth in each epoch."""
    return variant("one-shot-rlvr", CHANGES, curriculum=Recorded())


def one_shot(problem: str, **slots: object) -> TokenMethod:
    """One problem of the pool."""
    chosen = {"curriculum.chosen": "named-problems", "curriculum.chosen.ids": problem}
    return variant("one-shot-rlvr", {**CHANGES, **chosen}, **slots)


def arms(problem: str) -> dict[str, TokenMethod]:
    """One problem with and without the entropy bonus, and the entropy bonus without a reward."""
    method = one_shot(problem)
    bonus = method.regularizers[1:]
    unpaid = variant(one_shot(problem, regularizers=bonus), {"rewards.task-reward.weight": 0})
    return {
        "one": method,
        "one, no entropy": one_shot(problem, regularizers=method.regularizers[:1]),
        "entropy": unpaid,
    }


def first(loop: LanguageLoop) -> Mapping[str, float]:
    """Which problem of the pool comes first in the ranking by variance."""
    (record,) = (part for part in loop.method.parts().values() if isinstance(part, EpochMeans))
    return {FIRST: float(record.ranked()[0].rpartition("/")[2])}


def tested(loop: LanguageLoop) -> float:
    """Test accuracy after every few steps, nothing in between."""
    if loop.finished % EVERY:
        return math.nan
    return look(loop.policy, TASK, **SIDE)["pass@1"]


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """The whole pool, which ranks its problems; then the first of them alone, from the same base model."""
    whole = spread(run, [Job("pool", pool(), TASK, seed, STEPS, after=first) for seed in seeds])
    start = run(Job("start", pool(), TASK, START, 0)).scores["pass@1"]
    jobs = [
        Job(arm, method, TASK, own.seed, STEPS, watch=tested if arm == "one" else None)
        for own in whole
        for arm, method in arms(TASK.problems("train")[int(own.scores[FIRST])].id).items()
    ]
    done = spread(run, jobs)
    one, silent, alone = ([r for r in done if r.label == arm] for arm in ("one", "one, no entropy", "entropy"))
    accuracy, before = scores(one, "pass@1"), [start] * len(seeds)
    base = "against the base"
    arm = {
        "accuracy": accuracy, f"accuracy {base}": accuracy, "accuracy without the entropy": accuracy,
        f"accuracy by the entropy alone, {base}": scores(alone, "pass@1"),
        "share of right completions of the problem": [largest(r) for r in one],
        "gain after saturation": [0.0 if (found := solved(r)) is None else found.gain for r in one],
    }  # fmt: skip
    baseline = {
        "accuracy": scores(whole, "pass@1"), f"accuracy {base}": before,
        "accuracy without the entropy": scores(silent, "pass@1"),
        f"accuracy by the entropy alone, {base}": before,
        "share of right completions of the problem": [r.metrics[0]["accuracy"] for r in one],
    }  # fmt: skip
    budgets = {"completions": ([rows(r) for r in one], [rows(r) for r in whole])}
    return pairs(seeds, arm, baseline, start={"accuracy": before}, budgets=budgets)


def rows(found: Run) -> float:
    """How many completions were learned from."""
    return float(sum(m["rows"] for m in found.metrics))


def largest(found: Run) -> float:
    """The best accuracy on the one problem in a step."""
    return max(float(m["accuracy"]) for m in found.metrics)


def solved(found: Run) -> Saturation | None:
    """Where the one problem is solved, and the test accuracy from there on; None if it never is."""
    steps = [n for n, score in enumerate(found.watched, 1) if np.isfinite(score)]
    return saturation([m["accuracy"] for m in found.metrics], steps, [found.watched[n - 1] for n in steps])
