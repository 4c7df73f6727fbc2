"""The clipped surrogate for rows of an older policy: a clip around the present one, a weight for their age."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.fields import Fraction, Positive
from etude.core.part import Need
from etude.core.slots import TokenObjective


class DecoupledSurrogate(TokenObjective):
    """PPO's clipped surrogate around the policy that the step began with, on rows that an older one sampled.

    With the behaviour policy b that sampled, and the proximal policy p that the training step began with (recomputed),

        loss[b,t] = -w min(rho A, clip(rho, 1 - low, 1 + high) A),    rho = pi / p,
        w = p / b where that is at most `cap`, else 0,    without gradient,

    so the clip bounds how far one step goes, however old the rows are, and w makes up for their age. Tokens over the
    cap teach nothing and still count in the loss's denominator. On rows of the present policy, b = p, it is
    `ClippedSurrogate`, to the rounding of recomputed log-probabilities.

    Published variants differ in what becomes of tokens over the cap: here they are left out, as in the code of
    ASearcher (arXiv:2508.07976, which takes low = high = 0.4); others cut w down to the cap.

    Shapes: every tensor of the batch is [B, T]; returns [B, T]. Ratios are dimensionless.
    Raises: ConfigError if low is not in (0, 1), or high or cap is not positive.

    Two tokens became twice and eight times as likely since they were sampled, and no less likely in this step:

    >>> from types import SimpleNamespace as Rows
    >>> sampled, now = torch.tensor([0.25, 0.1]).log(), torch.tensor([0.5, 0.8]).log()
    >>> batch = Rows(behaviour_logp=sampled, proximal_logp=now, advantages=torch.tensor([1.0, 1.0]))
    >>> [round(x, 4) for x in DecoupledSurrogate(cap=5)(batch, TokenLogProbs(now)).tolist()]
    [-2.0, -0.0]

    Source: arXiv:2110.00641, eq. 5 (batch size-invariance), in the form of arXiv:2505.24298 (AReaL), eq. 5.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.PROXIMAL_LOGP})
    vanishes_with_advantage: ClassVar[bool] = True
    uses_behaviour: ClassVar[bool] = True
    zero_without_advantage: ClassVar[frozenset[str]] = frozenset({"clip_fraction"})
    low: Fraction = 0.2
    high: Positive = 0.2
    cap: Positive = 5.0

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None and batch.proximal_logp is not None
        ratio = (policy.logp - batch.proximal_logp).exp()
        clipped = ratio.clamp(1 - self.low, 1 + self.high)
        weight = (batch.proximal_logp - batch.behaviour_logp).exp()
        kept = torch.where(weight <= self.cap, weight, 0.0)
        return -kept * torch.minimum(ratio * batch.advantages, clipped * batch.advantages)

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """`clip_fraction`: tokens whose gradient the clip removes. `over_cap`: tokens left out as too far away.

        `behaviour_kl`: k3 estimate of KL(b || pi), nats per token.
        """
        assert batch.advantages is not None and batch.proximal_logp is not None
        ratio, rises = (policy.logp - batch.proximal_logp).exp(), batch.advantages > 0
        clipped = (rises & (ratio > 1 + self.high)) | ((batch.advantages < 0) & (ratio < 1 - self.low))
        weight = (batch.proximal_logp - batch.behaviour_logp).exp()
        log_ratio = policy.logp - batch.behaviour_logp
        return {
            "clip_fraction": clipped.float(), "over_cap": (weight > self.cap).float(),
            "behaviour_kl": log_ratio.exp() - 1 - log_ratio,
        }  # fmt: skip
