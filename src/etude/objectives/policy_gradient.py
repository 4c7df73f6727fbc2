"""Surrogates whose gradient is the policy gradient."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.fields import Fraction, Positive
from etude.core.slots import TokenObjective
from etude.core.step_slots import StepObjective
from etude.core.transitions import along


class PolicyGradient(TokenObjective, StepObjective):
    """loss[b,t] = -A[b,t] log pi[b,t]: REINFORCE, without ratio or clip.

    On fresh samples its gradient is the policy gradient; on older ones it is biased by the missing ratio.

    Shapes: as the batch's, [B, T] or [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> PolicyGradient()(Rows(advantages=torch.tensor([2.0, -1.0])), TokenLogProbs(torch.tensor([-3.0, -3.0]))).tolist()
    [6.0, -3.0]
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

    At rho = 2 a good token gains no more than at the clip, a bad one loses all:

    >>> from types import SimpleNamespace as Rows
    >>> batch = Rows(behaviour_logp=torch.tensor([0.25, 0.25]).log(), advantages=torch.tensor([1.0, -1.0]))
    >>> loss = ClippedSurrogate(low=0.2, high=0.5)(batch, TokenLogProbs(torch.tensor([0.5, 0.5]).log()))
    >>> [round(x, 4) for x in loss.tolist()]
    [-1.5, 2.0]
    """

    vanishes_with_advantage: ClassVar[bool] = True
    uses_behaviour: ClassVar[bool] = True
    zero_without_advantage: ClassVar[frozenset[str]] = frozenset({"clip_fraction"})
    low: Fraction = 0.2
    high: Positive = 0.2

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        advantages = along(batch.advantages, policy.logp)
        ratio = self.log_ratio(batch, policy).exp()
        clipped = ratio.clamp(1 - self.low, 1 + self.high)
        return -torch.minimum(ratio * advantages, clipped * advantages)

    def log_ratio(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """log rho, shaped as the log-probabilities: here of single tokens."""
        return policy.logp - batch.behaviour_logp

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """`clip_fraction`: tokens whose gradient the clip removes. `behaviour_kl`: k3 estimate, nats per token."""
        assert batch.advantages is not None
        advantages, log_ratio = along(batch.advantages, policy.logp), self.log_ratio(batch, policy)
        ratio, rises = log_ratio.exp(), advantages > 0
        clipped = (rises & (ratio > 1 + self.high)) | ((advantages < 0) & (ratio < 1 - self.low))
        return {"clip_fraction": clipped.float(), "behaviour_kl": ratio - 1 - log_ratio}
