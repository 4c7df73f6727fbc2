"""The claim of PerfRL: candidates that are run and ranked, against as many more steps on worked answers.

Both arms begin with the same supervised steps on slow programs and somewhat faster ones, from a blank model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from etude.evaluation.pairs import Pair
from etude.experiments.arms import Trained, language, pairs, started, untrained, variant
from etude.tasks.language.stack_machine import StackMachine, speedups

TASK, MODEL, WARM, STEPS = StackMachine(), "blank:2x64x4", 400, 30
CHANGES = {"problems": 32, "optimizer.lr": 1e-3}
TAUGHT = {"problems": 64, "optimizer.lr": 2e-3}


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """What rewrites of programs of the test come to, by ranking or by imitation."""
    arms = {
        "perfrl": variant("perfrl", {**CHANGES, "optimizer.lr": 5e-4, **(arm or {})}, stages=()),
        "sft": variant("sft", {**CHANGES, **(baseline or {})}),
    }
    blank = figures(untrained(arms["sft"], TASK, start=MODEL))
    with started(TASK, steps=WARM, start=MODEL, changes=TAUGHT) as first:
        found = language(arms, TASK, seeds=seeds, steps=STEPS, start=first.folder)
    by_arm = [{k: [figures(run)[k] for run in found[name]] for k in blank} for name in arms]
    start = {k: [value] * len(seeds) for k, value in blank.items()}
    return pairs(seeds, *by_arm, start=start, budgets={"updates": ([STEPS] * len(seeds), [STEPS] * len(seeds))})


def figures(run: Trained) -> dict[str, float]:
    """The shares of rewrites that are right, and right and at least a tenth faster, and how much faster all are."""
    faster = speedups(run.rewards)
    return {
        "optimised": float(np.mean(faster > 1)), "speedup": float(np.mean(faster)),
        "right": float(np.mean(run.rewards >= 1)), "best of 2": float(np.mean(faster.max(1))),
    }  # fmt: skip
