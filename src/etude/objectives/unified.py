"""One estimator of which supervised and reinforced objectives are cases: what is divided by, and what is masked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.fields import NonNegative, Positive
from etude.core.slots import TokenObjective
from etude.objectives.sequence import sequence_log_ratio


class UnifiedGradient(TokenObjective):
    """loss[b,t] = -m A pi / pi_ref, so that the gradient is that of the unified estimator (arXiv:2509.04419, eq. 8):

        -grad = m * (1 / pi_ref) * A * grad pi,    m and pi_ref without gradient.

    denominator, pi_ref:
        'current'    pi itself: the gradient of A log pi (SFT with A = 1, REINFORCE); the loss as a number says nothing;
        'behaviour'  pi_old (PPO, GRPO, CISPO);
        'sequence'   pi (pi_old(y) / pi(y))^(1/|y|), which makes pi / pi_ref the mean ratio of the completion (GSPO);
        'one'        1, rows of unknown origin taken as they are (SRFT offline);
        'shaped'     1 / f'(pi) with f(p) = p / (p + shape) (LUFFY offline).
    mask, m, with rho = pi / pi_old:
        'none'           1;
        'clip'           0 where A > 0 and rho > 1 + high, or A < 0 and rho < 1 - low (PPO, GRPO);
        'weight-clip'    clip(rho, 1 - low, 1 + high) / rho, the ratio bounded but no token lost (CISPO);
        'sequence-clip'  as 'clip', of the completion's mean ratio (GSPO).

    Shapes: [B, T]. Raises ConfigError for low and high that make the clip empty.
    """

    denominator: Literal["current", "behaviour", "sequence", "one", "shaped"] = "behaviour"
    mask: Literal["none", "clip", "weight-clip", "sequence-clip"] = "none"
    low: Positive = 0.2
    high: Positive = 0.2
    shape: Positive = 0.1

    def check(self) -> None:
        if self.low >= 1 and self.mask in ("clip", "sequence-clip"):
            raise ConfigError(f"UnifiedGradient.low must be below 1 for mask={self.mask!r}, got {self.low}.")

    @property
    def uses_behaviour(self) -> bool:  # type: ignore[override]
        """Whether the chosen denominator or mask has the policy that sampled in it."""
        return self.denominator in ("behaviour", "sequence") or self.mask != "none"

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        ratio = (policy.logp - self.log_reference(batch, policy.logp.detach())).exp()
        return -self.stabiliser(batch, policy.logp.detach()) * batch.advantages * ratio

    def log_reference(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        """log pi_ref [B, T]; logp is detached."""
        return LOG_REFERENCE[self.denominator](batch, logp, self.shape)

    def stabiliser(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        """m [B, T]; logp is detached."""
        assert batch.advantages is not None
        if self.mask == "none":
            return torch.ones_like(logp)
        rho = (logp - batch.behaviour_logp).exp()
        if self.mask == "weight-clip":
            return rho.clamp(1 - self.low, 1 + self.high) / rho
        if self.mask == "sequence-clip":
            rho = mean_log_ratio(batch, logp).exp()
        rises, falls = batch.advantages > 0, batch.advantages < 0
        return (~((rises & (rho > 1 + self.high)) | (falls & (rho < 1 - self.low)))).to(logp.dtype)


class Hybrid(TokenObjective):
    """On sampled rows another objective, on written ones coefficient * -log pi.

    The loop averages the two kinds apart, sampled rows by the method's aggregation, each written one over its tokens,
    and counts them by the share of the problems that have rows of the kind.

    Args:
        sampled: what is minimised on the policy's own completions.
        coefficient: weight of the worked answers' log-likelihood.
    """

    sampled: TokenObjective = UnifiedGradient()
    coefficient: NonNegative = 1.0

    def check(self) -> None:
        name = type(self.sampled).__name__
        if self.sampled.couples != "row":
            raise ConfigError(f"Hybrid.sampled must judge rows one by one, and {name} does not.")
        if self.sampled.per_row:
            raise ConfigError(f"Hybrid.sampled must have a loss per token, and that of {name} is one number per row.")

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        found = self.sampled(batch, policy)
        return torch.where(batch.sampled[:, None], found, -self.coefficient * policy.logp)


def mean_log_ratio(batch: TokenBatch, logp: Tensor) -> Tensor:
    """[B, 1] log of (pi(y) / pi_old(y))^(1/|y|)."""
    return (sequence_log_ratio(batch, TokenLogProbs(logp)) / batch.action_counts.clamp(min=1))[:, None]


LOG_REFERENCE: dict[str, Callable[[TokenBatch, Tensor, float], Tensor]] = {
    "current": lambda batch, logp, shape: logp,
    "behaviour": lambda batch, logp, shape: batch.behaviour_logp,
    "sequence": lambda batch, logp, shape: logp - mean_log_ratio(batch, logp),
    "one": lambda batch, logp, shape: torch.zeros_like(logp),
    "shaped": lambda batch, logp, shape: 2 * (logp.exp() + shape).log() - math.log(shape),
}
"""log pi_ref [B, T] by the name of the denominator."""
