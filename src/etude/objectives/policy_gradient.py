"""Surrogates whose gradient is the policy gradient."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs, along
from etude.core.fields import Fraction, Positive
from etude.core.slots import StepObjective, TokenObjective


class PolicyGradient(TokenObjective, StepObjective):
    """loss[b,t] = -A[b,t] log pi[b,t]: REINFORCE, without ratio or clip.

    On fresh samples its gradient is the policy gradient; on older ones it is biased by the missing ratio.
    """

    vanishes_with_advantage: ClassVar[bool] = True

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        return -along(batch.advantages, policy.logp) * policy.logp


class ClippedSurrogate(TokenObjective, StepObjective):
    """PPO's clipped surrogate with separate lower and upper clip (arXiv:1707.06347, eq. 7).

    loss[b,t] = -min(rho A, clip(rho, 1 - low, 1 + high) A),  rho = exp(logp - behaviour_logp)

    Shapes: every tensor of the batch is [B, T]; returns [B, T]. Ratios are dimensionless. In control [P, N]; where
    logp is that of a chain, [P, N, C], every link has a ratio and a clip of its own.
    Raises: ConfigError if low is not in (0, 1) or high is not positive.
    """

    vanishes_with_advantage: ClassVar[bool] = True
    uses_behaviour: ClassVar[bool] = True
    zero_without_advantage: ClassVar[frozenset[str]] = frozenset({"clip_fraction"})
    low: Fraction = 0.2
    high: Positive = 0.2

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        advantages = along(batch.advantages, policy.logp)
        ratio = (policy.logp - batch.behaviour_logp).exp()
        clipped = ratio.clamp(1 - self.low, 1 + self.high)
        return -torch.minimum(ratio * advantages, clipped * advantages)

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """`clip_fraction`: tokens whose gradient the clip removes. `behaviour_kl`: k3 estimate, nats per token."""
        assert batch.advantages is not None
        advantages, log_ratio = along(batch.advantages, policy.logp), policy.logp - batch.behaviour_logp
        ratio, rises = log_ratio.exp(), advantages > 0
        clipped = (rises & (ratio > 1 + self.high)) | ((advantages < 0) & (ratio < 1 - self.low))
        return {"clip_fraction": clipped.float(), "behaviour_kl": ratio - 1 - log_ratio}
