"""What forking-tokens claims: learning from the undecided fifth of the tokens, from all of them, and from the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from etude.evaluation.pairs import Pair
from etude.experiments.arms import Trained, language, pairs, untrained, variant
from etude.tasks.language.compose import Compose

TASK = Compose(levels=(3,))
STEPS, LATE = 15, 5
SHARED = {"problems": 32, "optimizer.lr": 2e-4}


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Three arms that differ in which tokens have a gradient; accuracy, and entropy at the end of training."""
    everything = variant("forking-tokens", {**SHARED, "token_weights.0.share": 1.0})
    arms = {
        "top": variant("forking-tokens", SHARED), "all": everything,
        "bottom": variant("forking-tokens", {**SHARED, "token_weights.0.complement": True}),
    }  # fmt: skip
    found = language(arms, TASK, seeds=seeds, steps=STEPS)
    accuracy = {k: [run.pass_at(1) for run in runs] for k, runs in found.items()}
    entropy = {k: [_entropy(run) for run in runs] for k, runs in found.items()}
    first = untrained(everything, TASK).pass_at(1)
    whole, rest, collapse = "accuracy against all tokens", "accuracy against the rest", "entropy of the rest"
    return pairs(
        seeds, {whole: accuracy["top"], rest: accuracy["top"], collapse: entropy["bottom"]},
        {whole: accuracy["all"], rest: accuracy["bottom"], collapse: entropy["all"]},
        start={whole: [first] * len(seeds)},
    )  # fmt: skip


def _entropy(run: Trained) -> float:
    """Of a sampled answer's tokens in the last steps, in nats."""
    return float(np.mean([line["entropy_before"] for line in run.metrics[-LATE:] if "entropy_before" in line]))
