"""OBLR-PO's claim: how much the gradient of a bandit varies, and how a high learning rate is survived on sums."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, LeaveOneOut
from etude.core.batches import Head, TokenBatch
from etude.experiments.arms import SEEDS, Question, Trained, findings, language, variant
from etude.experiments.cells import recorded
from etude.methods.rlvr.oblr_po import GradientWeightedBaseline
from etude.tasks.language.sums import Sums

BANDITS, ARMS, DRAWS = 64, 20, 2000
"""Each bandit's gradient is estimated from so many groups."""
SIZES = (8, 4, 32)
"""Completions per group; the question is asked of the first, the parent's."""
TASK, RUNS, STEPS, RATE = Sums(terms=(3, 4)), 3, 40, 3e-4
"""RATE is three times the usual one of a model of this size; RLOO loses accuracy at it."""
BASELINES = {
    "weighted": GradientWeightedBaseline(),
    "rloo": GroupAdvantage(centre=LeaveOneOut(), scale=None),
    "none": GroupAdvantage(centre=None, scale=None),
}


def experiment() -> dict[str, Any]:
    """Variances on bandits of skewed probabilities; largest drop and final accuracy with groups of 4."""
    sizes = [SEEDS, BANDITS, ARMS, DRAWS, *BASELINES]
    found = {n: recorded(f"bandits, groups of {n}", [n, *sizes], partial(_all_variances, n)) for n in SIZES}
    varies = {name: [v[name] for v in found[SIZES[0]]] for name in found[SIZES[0]][0]}
    changes = {"experience.size": 4, "optimizer.lr": RATE}
    names = ("oblr-po", "rloo", "grpo")
    runs = language({name: variant(name, changes) for name in names}, TASK, seeds=RUNS, steps=STEPS)
    drops = {name: [_drawdown(run) for run in runs[name]] for name in names}
    final = {name: [run.pass_at(1) for run in runs[name]] for name in names}
    questions = [
        Question(f"variance of the gradient against {k}", {n: varies[n] for n in ("weighted", k)}, "lower")
        for k in ("rloo", "none")
    ]
    for other in names[1:]:
        pair = (names[0], other)
        questions += [
            Question(f"largest drop of running accuracy against {other}", {k: drops[k] for k in pair}, "lower"),
            Question(f"pass@1 against {other}", {k: final[k] for k in pair}),
        ]
    means = {n: {k: float(np.mean([v[k] for v in rows])) for k in rows[0]} for n, rows in found.items()}
    paces = [float(np.mean([m.get("learning_rate", 0.0) for m in run.metrics]) / RATE) for run in runs[names[0]]]
    return findings(
        questions, task="bandits, sums", steps=STEPS, seeds=BANDITS, runs=RUNS, rate=RATE,
        variance_by_group_size={str(n): v for n, v in means.items()}, mean_share_of_the_rate=paces,
    )  # fmt: skip


def _all_variances(size: int) -> list[dict[str, float]]:
    return [_variances(seed, size) for seed in range(SEEDS, SEEDS + BANDITS)]


def _variances(seed: int, size: int) -> dict[str, float]:
    """Trace of the covariance of mean_i A_i grad log pi(y_i) over one bandit's groups of `size`, by baseline.

    Relative to the squared norm of the true gradient of E[r]. 'oracle' knows b* = E[w r] / E[w].
    """
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(ARMS, generator=random, dtype=torch.float64)
    reward, p = torch.rand(ARMS, generator=random, dtype=torch.float64), logits.softmax(0)
    action = torch.multinomial(p, DRAWS * size, replacement=True, generator=random)
    batch, scores = _batch(action, reward[action], logits, size), torch.eye(ARMS).double() - p
    norms = p * scores.square().sum(1)
    credit = {name: part(batch)[:, 0] for name, part in BASELINES.items()}
    credit["oracle"] = reward[action] - (norms * reward).sum() / norms.sum()
    truth = (p * (reward - (p * reward).sum())).square().sum()
    found = {}
    for name, advantage in credit.items():
        estimates = (advantage[:, None] * scores[action]).view(DRAWS, size, ARMS).mean(1)
        found[name] = float(estimates.var(0).sum() / truth)
    return found


def _batch(action: Tensor, scores: Tensor, logits: Tensor, size: int) -> TokenBatch:
    """One row per draw; the bandit is a last layer on a state that is always 1."""
    count = len(action)
    mask, zeros = torch.ones(count, 1, dtype=torch.bool), torch.zeros(count, 1, dtype=torch.float64)
    batch = TokenBatch(
        tokens=action[:, None], attention_mask=mask, action_mask=mask, behaviour_logp=zeros, rewards=zeros,
        group=torch.arange(count) // size, weights=scores.new_ones(count), scores=scores, truncated=~mask[:, 0],
        head=Head(logits[:, None]),
    )  # fmt: skip
    batch.hidden = zeros[..., None] + 1
    return batch


def _drawdown(run: Trained, window: int = 5) -> float:
    """Largest fall of the mean accuracy of `window` training steps below its best so far."""
    curve = np.convolve([m["accuracy"] for m in run.metrics], np.ones(window) / window, "valid")
    return float((np.maximum.accumulate(curve) - curve).max())
