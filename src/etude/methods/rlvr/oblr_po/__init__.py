"""OBLR-PO: optimal baseline and learning rate for policy optimization (arXiv:2511.23310).

Changes RLOO in two places:

1. the baseline of completion i is the mean reward of the others weighted by the squared norm of their scores,

       b_i = sum_{l != i} w_l r_l / sum_{l != i} w_l,    w_l = |grad log pi(y_l)|^2,

   the leave-one-out form of b* = E[w r] / E[w], which minimises the variance of (r - b) grad log pi. It does not depend
   on completion i, so the gradient stays unbiased; equal weights are RLOO;
2. the learning rate is eta_max * SNR / (1 + SNR), the share of the gradient that two halves of the batch agree on
   (`snr.py`).

The norm over all parameters would take a backward pass per completion. 'last-layer' is that of the output matrix alone,
in closed form; 'proxy' that of the logits, which leaves out how alike a completion's states are; for policies that are
tables of logits both are exact. How the paper estimates the two on large models could not be confirmed: halves, moving
averages and these norms are choices of ours.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from etude.advantages.group import episode_sum, equal_groups, of_episodes
from etude.advantages.order_statistics import of_groups
from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.part import Need
from etude.core.slots import TokenAdvantages
from etude.methods.rlvr.oblr_po.snr import SNRAdamW
from etude.methods.rlvr.rloo import rloo

Norm = Literal["last-layer", "proxy", "uniform"]
CHUNK = 2**24
"""Numbers at once while norms are computed."""


@torch.no_grad()
def score_norms(batch: TokenBatch, norm: Norm) -> Tensor:
    """[B] in float64: squared norms of the rows' scores, estimated as `norm` says; needs 'hidden' and `head`.

    With d_t = onehot(y_t) - p_t and h_t the state before it: |sum_t d_t h_t'|_F^2 = sum_{t,u} (d_t.d_u) (h_t.h_u)
    ('last-layer'), sum_t |d_t|^2 = sum_t (1 - 2 p_t(y_t) + sum_v p_t(v)^2) ('proxy'), 1 ('uniform'). At a temperature
    other than 1, d is divided by it.
    """
    if norm == "uniform":
        return torch.ones_like(batch.scores, dtype=torch.float64)
    assert batch.head is not None and batch.hidden is not None
    columns = batch.action_mask.any(0)
    mask, tokens, hidden = (x[:, columns] for x in (batch.action_mask, batch.tokens, batch.hidden))
    rows = max(1, CHUNK // (mask.shape[1] * len(batch.head.weight)))
    norms = []
    for m, y, h in zip(mask.split(rows), tokens.split(rows), hidden.to(batch.head.weight).split(rows)):
        d = h.new_zeros(*m.shape, len(batch.head.weight))
        d[m] = batch.head.residual(h[m], y[m])
        squares = (d @ d.mT) * (h @ h.mT) if norm == "last-layer" else d**2
        norms.append(squares.double().sum((1, 2)))
    return torch.cat(norms)


class GradientWeightedBaseline(TokenAdvantages):
    """A_i = r_i - b_i, b_i the mean reward of the others in the group, weighted by `score_norms`.

    A group of equal rewards gets exactly 0, and so does a completion without others or one that was written. Norms of
    an episode's rows are added, as if their scores were orthogonal.

    Args:
        norm: 'last-layer', 'proxy' or 'uniform' (RLOO).

    Shapes: scores, group [B] -> [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([1.0, 0.0, 0.0]), group=torch.zeros(3), action_mask=torch.ones(3, 1))
    >>> rows.sampled, rows.once = torch.ones(3, dtype=torch.bool), lambda: None
    >>> GradientWeightedBaseline(norm="uniform")(rows).tolist()
    [[1.0], [-0.5], [-0.5]]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HIDDEN})
    norm: Norm = "last-layer"

    def __call__(self, batch: TokenBatch) -> Tensor:
        norms = score_norms(batch, self.norm)
        w = ((norms if self.norm == "uniform" else episode_sum(norms, batch)) + 1e-30) * batch.sampled
        advantages = of_episodes(lambda r, w, group: of_groups(_minus_others, group, r, w), batch, batch.scores, w)
        nothing = equal_groups(batch.scores, batch.group) | ~batch.sampled
        return torch.where(nothing, 0.0, advantages).to(batch.scores.dtype)[:, None] * batch.action_mask


def _minus_others(r: Tensor, w: Tensor) -> Tensor:
    """[M, n] r_i - sum_{l != i} w_l r_l / sum_{l != i} w_l, and 0 where no other has a weight."""
    others = 1 - torch.eye(r.shape[1], dtype=r.dtype, device=r.device)  # no differences of sums, which could cancel
    total = w @ others
    return torch.where(total > 0, r - (w * r) @ others / total.clamp(min=1e-300), 0.0)


oblr_po = rloo.replace(
    id="oblr-po",
    title="OBLR-PO: A Theoretical Framework for Stable Reinforcement Learning",
    paper="arXiv:2511.23310",
    advantages=GradientWeightedBaseline(norm="last-layer"),
    optimizer=SNRAdamW(memory=0.9, floor=0.05),
    claim=Claim(
        statement="The weighted baseline's gradients vary less than RLOO's; at a high learning rate the accuracy drops "
        "less on the way and ends higher than RLOO's at a constant one.",
        task="compose",
        setting="chains of three functions, 20-armed bandits",
        measures=(
            Measure(name="pass@1"),
            Measure(name="largest drop", direction="lower", smallest=0.02),
            Measure(name="variance of the gradient", direction="lower", smallest=0.05, bounds=(None, None)),
            Measure(
                name="variance against no baseline", role="mechanism", direction="lower", smallest=0.05,
                bounds=(None, None),
            ),
            Measure(
                name="variance of the best baseline", role="mechanism", direction="lower", smallest=0.05,
                bounds=(None, None),
            ),
            Measure(name="pass@1 against grpo", role="mechanism"),
            Measure(name="largest drop against grpo", role="mechanism", direction="lower", smallest=0.02),
            Measure(name="share of the rate withheld", role="mechanism", smallest=0.05, minimum=0.1),
        ),
        equal=("completions",),
        learned_on="pass@1",
        paper_effect="Consistent gains over existing baselines on mathematics with Qwen3-4B and 8B.",
    ),
)  # fmt: skip
