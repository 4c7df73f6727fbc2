"""OBLR-PO's claim: how much the gradient of bandits varies, and how a high learning rate is survived on language."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, LeaveOneOut
from etude.core.batches import Head, TokenBatch
from etude.evaluation.pairs import Pair
from etude.experiments.arms import Trained, drawdown, language, pairs, untrained, variant
from etude.experiments.cells import recorded, spread
from etude.methods.rlvr.oblr_po import GradientWeightedBaseline
from etude.tasks.language.compose import Compose

BANDITS, ARMS, DRAWS, SIZE = 16, 20, 500, 8
"""Each bandit's gradient is estimated from so many groups of SIZE."""
TASK, STEPS, RATE = Compose(levels=(3,)), 30, 6e-4
"""RATE is six times the usual one of a model of this size; at 1e-3 RLOO loses all that it knew."""
BASELINES = {
    "weighted": GradientWeightedBaseline(),
    "rloo": GroupAdvantage(centre=LeaveOneOut(), scale=None),
    "none": GroupAdvantage(centre=None, scale=None),
}


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Variances on bandits of skewed probabilities; largest drop and final accuracy with groups of 4."""
    found = spread(variances, seeds)
    varies = {k: [v[k] for v in found] for k in found[0]}
    changes = {"experience.size": 4, "optimizer.lr": RATE}
    runs = language({k: variant(k, changes) for k in ("oblr-po", "rloo", "grpo")}, TASK, seeds=seeds, steps=STEPS)
    drops, final = ({k: [f(r) for r in v] for k, v in runs.items()} for f in (drawdown, _accuracy))
    withheld = [1 - float(np.mean([m.get("learning_rate", 0.0) for m in r.metrics])) / RATE for r in runs["oblr-po"]]
    return pairs(
        seeds,
        {"pass@1": final["oblr-po"], "largest drop": drops["oblr-po"], "variance of the gradient": varies["weighted"],
         "variance against no baseline": varies["weighted"], "variance of the best baseline": varies["oracle"],
         "pass@1 against grpo": final["oblr-po"], "largest drop against grpo": drops["oblr-po"],
         "share of the rate withheld": withheld},
        {"pass@1": final["rloo"], "largest drop": drops["rloo"], "variance of the gradient": varies["rloo"],
         "variance against no baseline": varies["none"], "variance of the best baseline": varies["rloo"],
         "pass@1 against grpo": final["grpo"], "largest drop against grpo": drops["grpo"],
         "share of the rate withheld": [0.0] * len(seeds)},
        start={"pass@1": [untrained(variant("grpo"), TASK).pass_at(1)] * len(seeds)},
        budgets={"completions": ([r.completions for r in runs["oblr-po"]], [r.completions for r in runs["rloo"]])},
    )  # fmt: skip


def _accuracy(run: Trained) -> float:
    return run.pass_at(1)


def variances(seed: int) -> dict[str, float]:
    """Mean logarithm over a seed's bandits of how much their gradients vary, by baseline."""
    torch.set_num_threads(1)
    matters = [seed, BANDITS, ARMS, DRAWS, SIZE, *BASELINES]
    return recorded(f"bandits {seed}", matters, lambda: _variances(seed))


def _variances(seed: int) -> dict[str, float]:
    random = torch.Generator().manual_seed(seed)
    each = [_variance(random) for _ in range(BANDITS)]
    return {k: float(np.mean([np.log(v[k]) for v in each])) for k in each[0]}


def _variance(random: torch.Generator) -> dict[str, float]:
    """Trace of the covariance of mean_i A_i grad log pi(y_i) over one bandit's groups of SIZE, by baseline.

    'oracle' knows b* = E[w r] / E[w].
    """
    logits = 2 * torch.randn(ARMS, generator=random, dtype=torch.float64)
    reward, p = torch.rand(ARMS, generator=random, dtype=torch.float64), logits.softmax(0)
    action = torch.multinomial(p, DRAWS * SIZE, replacement=True, generator=random)
    batch, scores = _batch(action, reward[action], logits), torch.eye(ARMS).double() - p
    norms = p * scores.square().sum(1)
    credit = {name: part(batch)[:, 0] for name, part in BASELINES.items()}
    credit["oracle"] = reward[action] - (norms * reward).sum() / norms.sum()
    estimates = {k: (a[:, None] * scores[action]).view(DRAWS, SIZE, ARMS).mean(1) for k, a in credit.items()}
    return {k: float(e.var(0).sum()) for k, e in estimates.items()}


def _batch(action: Tensor, scores: Tensor, logits: Tensor) -> TokenBatch:
    """One row per draw; the bandit is a last layer on a state that is always 1."""
    count = len(action)
    mask, zeros = torch.ones(count, 1, dtype=torch.bool), torch.zeros(count, 1, dtype=torch.float64)
    batch = TokenBatch(
        tokens=action[:, None], attention_mask=mask, action_mask=mask, behaviour_logp=zeros, rewards=zeros,
        group=torch.arange(count) // SIZE, weights=scores.new_ones(count), scores=scores, truncated=~mask[:, 0],
        head=Head(logits[:, None]),
    )  # fmt: skip
    batch.hidden = zeros[..., None] + 1
    return batch
