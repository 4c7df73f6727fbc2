"""The claim of REFUEL: pairs of every turn of a dialogue, against as many pairs of its last turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.evaluation.pairs import Pair
from etude.experiments.arms import language, pairs, started, variant
from etude.tasks.agents.number_hunt import NumberHunt

TASK, WARM, STEPS = NumberHunt(), 300, 80
CHANGES = {"problems": 64, "optimizer.lr": 1e-3, "filters": "different-answers"}
"""Guesses are of one token: what goes on is cut, and would be learned from nowhere."""


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Reward of the last guess after as many steps, by pairs of all turns or of the last."""
    own = {"refuel": {**CHANGES, **(arm or {})}, "last": {**CHANGES, "experience.turn": "last", **(baseline or {})}}
    arms = {name: variant("refuel", changed) for name, changed in own.items()}
    with started(TASK, steps=WARM, start="blank:2x64x4") as first:
        found = language(arms, TASK, seeds=seeds, steps=STEPS, start=first.folder)
        before = float(first.trained.rewards.mean())
    figures = [
        {"reward": [float(r.rewards.mean()) for r in found[name]], "solved": [r.pass_at(1) for r in found[name]]}
        for name in arms
    ]
    budgets = {"rows": ([r.completions for r in found["refuel"]], [r.completions for r in found["last"]])}
    return pairs(seeds, *figures, start={"reward": [before] * len(seeds)}, budgets=budgets)
