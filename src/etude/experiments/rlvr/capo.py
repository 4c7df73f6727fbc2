"""What capo claims: steps so large and batches so small that GRPO collapses, with and without the mask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from etude.evaluation.pairs import Pair
from etude.experiments.arms import Trained, Training, pairs, run, untrained, variant
from etude.tasks.language.compose import Compose

TASK = Compose(levels=(2,))
RATE = 1e-3
"""Where GRPO begins to collapse: it learns at first; at 6e-4 batches as small go on learning."""
STEPS, CAUTIOUS_STEPS = 48, 12
BOLD = {"problems": 8, "optimizer.lr": RATE, "optimizer.warmup": 0.1}
CAUTIOUS = {"problems": 96, "optimizer.lr": RATE / 5, "optimizer.warmup": 0.1}
"""The paper's two regimes: a fifth of the learning rate with twelve times the problems."""
SPAN = 5
"""Steps whose accuracies are averaged to say how far training has fallen."""


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """CAPO against GRPO with large steps, against its own start, and against cautious GRPO with thrice the data."""
    plain = {"advantages.scale": "none"}
    arms = {
        "capo": (variant("capo", BOLD), STEPS), "grpo": (variant("grpo", {**BOLD, **plain}), STEPS),
        "cautious": (variant("grpo", {**CAUTIOUS, **plain}), CAUTIOUS_STEPS),
    }  # fmt: skip
    found = run([Training(k, m, TASK, seed, n) for seed in seeds for k, (m, n) in arms.items()])
    accuracy = {k: [r.pass_at(1) for r in runs] for k, runs in found.items()}
    first = untrained(arms["grpo"][0], TASK).pass_at(1)
    bold, fewer = "accuracy with large steps", "accuracy with a third of the completions"
    arm = {
        bold: accuracy["capo"], fewer: accuracy["capo"], "gain": [x - first for x in accuracy["capo"]],
        "fall of GRPO": [_fall(r) for r in found["grpo"]], "tokens left out": [_left_out(r) for r in found["capo"]],
    }  # fmt: skip
    counts = {k: [r.completions for r in runs] for k, runs in found.items()}
    return pairs(
        seeds, arm, {bold: accuracy["grpo"], fewer: accuracy["cautious"]}, start={fewer: [first] * len(seeds)},
        budgets={"completions": (counts["capo"], counts["grpo"])},
    )  # fmt: skip


def _fall(run: Trained) -> float:
    """From the best accuracy in training to the last."""
    accuracy = np.convolve([line["accuracy"] for line in run.metrics], np.ones(SPAN) / SPAN, "valid")
    return float(accuracy.max() - accuracy[-1])


def _left_out(run: Trained) -> float:
    """Share of tokens that the mask left out."""
    return 1 - float(np.mean([line.get("tokens_kept/curvature-mask", 1.0) for line in run.metrics]))
