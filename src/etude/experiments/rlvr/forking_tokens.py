"""What forking-tokens claims: learning from the undecided fifth of the tokens, from all of them, and from the rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.experiments.arms import Question, Trained, findings, language, variant
from etude.tasks.language.sums import Sums

TASK = Sums(terms=(4,))
STEPS, SEEDS, MARGIN = 30, 3, 0.02
"""MARGIN is what 'as much' may be short of in accuracy: about one standard error of 100 problems x 8 samples."""


def experiment() -> dict[str, Any]:
    """Three arms that differ in which tokens have a gradient; accuracy and entropy at the end of training."""
    shared = {"problems": 32, "optimizer.lr": 1e-4}
    arms = {
        "top 20 %": variant("forking-tokens", shared),
        "all tokens": variant("forking-tokens", {**shared, "token_weights.0.share": 1.0}),
        "bottom 80 %": variant("forking-tokens", {**shared, "token_weights.0.complement": True}),
    }
    found = language(arms, TASK, seeds=SEEDS, steps=STEPS)
    accuracy = {k: [run.pass_at(1) for run in runs] for k, runs in found.items()}
    entropy = {k: [_entropy(run) for run in runs] for k, runs in found.items()}
    top, everything, bottom = arms
    allowed, least = f"all tokens less {MARGIN}", [x - MARGIN for x in accuracy[everything]]
    return findings(
        [
            Question("Accuracy at most the margin below that of all tokens", {top: accuracy[top], allowed: least}),
            Question("Accuracy", _pair(accuracy, top, bottom)),
            Question("Entropy of a sampled answer's tokens in the last ten steps, in nats",
                     _pair(entropy, bottom, everything), "lower"),
        ],
        task=TASK.id, steps=STEPS, seeds=SEEDS, metric="pass@1", accuracy=accuracy, entropy=entropy,
    )  # fmt: skip


def _pair(scores: dict[str, list[float]], first: str, second: str) -> dict[str, list[float]]:
    return {first: scores[first], second: scores[second]}


def _entropy(run: Trained) -> float:
    return float(np.mean([m["entropy_before"] for m in run.metrics[-10:] if "entropy_before" in m]))
