"""The claim of T1: more completions per problem, an anchor that moves, and accuracy by budget of thought."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from etude.core.episodes import Problem
from etude.experiments.arms import Question, findings, variant
from etude.experiments.cells import spread
from etude.experiments.watched import Job, ends, run, runs, scores
from etude.references.frozen import Frozen
from etude.tasks.language.compose import Compose, functions_of

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop

STEPS, COUNT, PROBLEMS = 16, 3, 8
TASK = Compose(levels=(2, 3))
BUDGETS = (0, 6, 12, 18, 24)
"""Tokens of thought; a step of it takes six to nine."""


def answer_now(problem: Problem, text: str) -> str:
    """A step that was cut in the middle is left out; what the last function gives is the answer."""
    return f"{text.rpartition('>')[0]}>".removeprefix(">") + f"{functions_of(problem)[-1]}:"


def by_budget(loop: LanguageLoop) -> Mapping[str, float]:
    """Accuracy at every budget, and the least that it grew from one to the next."""
    from etude.evaluation.budget import accuracy_by_budget

    curve = accuracy_by_budget(
        loop.policy, TASK, BUDGETS, closing=answer_now, problems=100, samples=4, tokens=6, until=">", seed=7
    )
    steps = [b - a for a, b in pairwise(curve)]
    return {f"budget/{b}": a for b, a in zip(BUDGETS, curve)} | {"least": min(steps), "last": curve[-1] - curve[1]}


def experiment() -> dict[str, Any]:
    """K of 4, 16 and 64 with as many problems per step; a frozen anchor with K = 16; curves before and after."""
    t1 = variant("t1", {"problems": PROBLEMS})
    arms = {f"K={k}": variant(t1, {"experience.size": k}) for k in (4, 16, 64)}
    arms["frozen anchor"] = t1.replace(reference=Frozen())
    found = runs(arms, TASK, seeds=COUNT, steps=STEPS, after=by_budget, samples=4)
    start = spread(run, [Job("tiny", t1, TASK, r.seed, 0, after=by_budget, samples=4) for r in found["K=16"][:1]])[0]
    accuracy = {arm: scores(found[arm], "pass@1") for arm in arms}
    entropy = {arm: [ends([m["entropy"] for m in r.metrics])[1] for r in found[arm]] for arm in arms}
    questions = [
        Question("accuracy", {"K=64": accuracy["K=64"], "K=4": accuracy["K=4"]}),
        Question("entropy, last quarter of the steps", {"K=64": entropy["K=64"], "K=4": entropy["K=4"]}),
        Question(
            "accuracy with K = 16",
            {"moving anchor": accuracy["K=16"], "frozen anchor": accuracy["frozen anchor"]},
        ),
        Question(
            "least growth of accuracy from one budget to the next, after training",
            {"K=64": scores(found["K=64"], "least"), "none": [0.0] * COUNT},
        ),
        Question(
            f"growth of accuracy beyond {BUDGETS[1]} tokens",
            {"K=64": scores(found["K=64"], "last"), "before training": [start.scores["last"]] * COUNT},
        ),
    ]
    curves = {
        arm: {str(b): sum(scores(found[arm], f"budget/{b}")) / COUNT for b in BUDGETS}
        for arm in ("K=4", "K=16", "K=64")
    }
    curves["before training"] = {str(b): start.scores[f"budget/{b}"] for b in BUDGETS}
    return findings(
        questions, task="compose, levels 2 and 3", steps=STEPS, seeds=COUNT, more={"accuracy by budget": curves}
    )  # fmt: skip
