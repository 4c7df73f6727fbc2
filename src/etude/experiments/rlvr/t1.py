"""The claim of T1: more completions per problem, an anchor that moves, and accuracy by budget of thought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from etude.core.episodes import Problem
from etude.core.kinds import TokenMethod
from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, pairs, variant
from etude.experiments.watched import Job, Run, ends, run, runs, scores
from etude.references.frozen import Frozen, MovingAverage
from etude.tasks.language.compose import Compose, functions_of

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop

TASK, STEPS, PROBLEMS = Compose(levels=(2, 3)), 20, 8
RATE, WEIGHT = 0.2, 0.05
"""Of the anchor, which remembers five steps, a fourth of the run: at 0.01 it would not leave the start. Of the distance
from it, so that rewards depend on where it is."""
BUDGETS = (6, 24)
"""Tokens of thought; a step of it takes six to nine."""


def arms() -> dict[str, TokenMethod]:
    """Few, some and many completions of each problem, and an anchor that stands still."""
    t1 = variant("t1", {"problems": PROBLEMS, "rewards.scaled-kl.coefficient": WEIGHT},
                 reference=MovingAverage(rate=RATE))  # fmt: skip
    made = {f"K={k}": variant(t1, {"experience.size": k}) for k in (4, 16, 64)}
    return {**made, "frozen": made["K=16"].replace(reference=Frozen())}


def answer_now(problem: Problem, text: str) -> str:
    """A step that was cut in the middle is left out; what the last function gives is the answer."""
    return f"{text.rpartition('>')[0]}>".removeprefix(">") + f"{functions_of(problem)[-1]}:"


def after(loop: LanguageLoop) -> Mapping[str, float]:
    """What more thought brings, and how far the anchor is from the start, as a share of the policy's own way."""
    from etude.evaluation.budget import accuracy_by_budget
    from etude.policies.language import LanguagePolicy

    short, long = accuracy_by_budget(
        loop.policy, TASK, BUDGETS, closing=answer_now, problems=200, samples=2, tokens=6, until=">", seed=START
    )
    first = LanguagePolicy.load("tiny", device="cpu").model
    anchor = loop.policy.reference
    shift = 0.0 if anchor is None else distance(anchor, first) / max(1e-12, distance(loop.policy.model, first))
    return {"growth": long - short, "shift": shift}


def distance(one: torch.nn.Module, other: torch.nn.Module) -> float:
    """Euclidean distance of two models' weights."""
    squares = [(p - q).detach().square().sum() for p, q in zip(one.parameters(), other.parameters(), strict=True)]
    return float(torch.stack(squares).sum().sqrt())


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """K of 64 against 4 with as many problems per step; a moving against a frozen anchor; more against less thought."""
    made = arms()
    found = runs(made, TASK, seeds=seeds, steps=STEPS, after=after)
    start = run(Job("start", made["K=16"], TASK, START, 0, after=after)).scores
    accuracy = {arm: scores(found[arm], "pass@1") for arm in made}
    entropy = {arm: late_entropy(found[arm]) for arm in made}
    sides = {
        "accuracy, more completions": (accuracy["K=64"], accuracy["K=4"]),
        "accuracy, moving anchor": (accuracy["K=16"], accuracy["frozen"]),
        "entropy": (entropy["K=64"], entropy["K=4"]),
        "growth with thought": (scores(found["K=16"], "growth"), [start["growth"]] * len(seeds)),
        "anchor shift": (scores(found["K=16"], "shift"), scores(found["frozen"], "shift")),
    }
    before = [start["pass@1"]] * len(seeds)
    return pairs(
        seeds, {name: arm for name, (arm, _) in sides.items()}, {name: base for name, (_, base) in sides.items()},
        start={name: before for name in sides if name.startswith("accuracy")},
    )  # fmt: skip


def late_entropy(found: Sequence[Run]) -> list[float]:
    """Of each run the mean entropy of a token in the last quarter of the steps."""
    return [ends([m["entropy"] for m in r.metrics])[1] for r in found]
