"""One estimator of which supervised and reinforced objectives are cases: what is divided by, and what is masked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.fields import Fraction, NonNegative, Positive
from etude.core.part import Part, upgraded
from etude.core.slots import TokenObjective
from etude.objectives.sequence import sequence_log_ratio


def mean_log_ratio(batch: TokenBatch, logp: Tensor) -> Tensor:
    """[B, 1] log of (pi(y) / pi_old(y))^(1/|y|)."""
    return (sequence_log_ratio(batch, TokenLogProbs(logp)) / batch.action_counts.clamp(min=1))[:, None]


class Denominator(Part, abstract=True):
    """pi_ref, what the unified estimator divides the policy by. Everywhere logp [B, T] is detached."""

    slot = "denominator"

    def log_reference(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        """log pi_ref [B, T]."""
        raise NotImplementedError


class CurrentDenominator(Denominator):
    """pi itself: the gradient of A log pi (SFT with A = 1, REINFORCE); the loss as a number says nothing.

    Shapes: logp [B, T] -> [B, T].

    >>> CurrentDenominator().log_reference(None, torch.tensor([-2.0])).tolist()
    [-2.0]
    """

    def log_reference(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        return logp


class BehaviourDenominator(Denominator):
    """pi_old, the policy that sampled (PPO, GRPO, CISPO).

    Shapes: logp [B, T] -> [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> BehaviourDenominator().log_reference(Rows(behaviour_logp=torch.tensor([-1.0])), torch.tensor([-2.0])).tolist()
    [-1.0]
    """

    uses_behaviour: ClassVar[bool] = True

    def log_reference(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        return batch.behaviour_logp


class SequenceDenominator(Denominator):
    """pi (pi_old(y) / pi(y))^(1/|y|), which makes pi / pi_ref the mean ratio of the completion (GSPO).

    Shapes: logp [B, T] -> [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> old, mask = torch.tensor([[-1.0, -1.0]]), torch.tensor([[True, True]])
    >>> row = Rows(behaviour_logp=old, action_mask=mask, action_counts=mask.sum(1))
    >>> SequenceDenominator().log_reference(row, torch.tensor([[-1.0, -2.0]])).tolist()
    [[-0.5, -1.5]]
    """

    uses_behaviour: ClassVar[bool] = True

    def log_reference(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        return logp - mean_log_ratio(batch, logp)


class UnitDenominator(Denominator):
    """1: rows of unknown origin, taken as they are (SRFT offline).

    Shapes: logp [B, T] -> [B, T].

    >>> UnitDenominator().log_reference(None, torch.tensor([-2.0])).tolist()
    [0.0]
    """

    def log_reference(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        return torch.zeros_like(logp)


class ShapedDenominator(Denominator):
    """1 / f'(pi) with f(p) = p / (p + shape), which is (pi + shape)^2 / shape (LUFFY offline).

    Shapes: logp [B, T] -> [B, T].

    >>> round(ShapedDenominator(shape=0.5).log_reference(None, torch.tensor([0.5]).log()).exp().item(), 4)
    2.0
    """

    shape: Positive = 0.1

    def log_reference(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        return 2 * (logp.exp() + self.shape).log() - math.log(self.shape)


class StabilisingMask(Part, abstract=True):
    """m, a factor without gradient that keeps the unified estimator's steps small; rho = pi / pi_old."""

    slot = "mask"
    uses_behaviour: ClassVar[bool] = True

    def __call__(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        """m [B, T]; logp [B, T] is detached."""
        raise NotImplementedError


class ClipMask(StabilisingMask):
    """0 where A > 0 and rho > 1 + high, or A < 0 and rho < 1 - low; otherwise 1 (PPO, GRPO).

    Shapes: logp [B, T] -> [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(behaviour_logp=torch.tensor([-2.0, -2.0]), advantages=torch.tensor([1.0, -1.0]))
    >>> ClipMask()(rows, torch.tensor([-1.0, -1.0])).tolist()
    [0.0, 1.0]
    """

    low: Fraction = 0.2
    high: Positive = 0.2

    def __call__(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        assert batch.advantages is not None
        rho = self.log_ratio(batch, logp).exp()
        rises, falls = batch.advantages > 0, batch.advantages < 0
        return (~((rises & (rho > 1 + self.high)) | (falls & (rho < 1 - self.low)))).to(logp.dtype)

    def log_ratio(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        """log of what is clipped, [B, T] or [B, 1]."""
        return logp - batch.behaviour_logp


class SequenceClipMask(ClipMask):
    """As `ClipMask`, of the completion's mean ratio (pi(y) / pi_old(y))^(1/|y|) (GSPO).

    Shapes: logp [B, T] -> [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> old, mask, good = torch.full((1, 2), -2.0), torch.tensor([[True, True]]), torch.ones(1, 2)
    >>> row = Rows(behaviour_logp=old, action_mask=mask, action_counts=mask.sum(1), advantages=good)
    >>> SequenceClipMask()(row, torch.tensor([[-1.0, -2.0]])).tolist()
    [[0.0, 0.0]]
    """

    def log_ratio(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        return mean_log_ratio(batch, logp)


class WeightClipMask(StabilisingMask):
    """clip(rho, 1 - low, 1 + high) / rho: the ratio is bounded, but no token is lost (CISPO).

    Shapes: logp [B, T] -> [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> row = Rows(behaviour_logp=torch.tensor(0.25).log())
    >>> round(WeightClipMask(high=0.5)(row, torch.tensor(0.5).log()).item(), 4)
    0.75
    """

    low: Positive = 0.2
    high: Positive = 0.2

    def __call__(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        rho = (logp - batch.behaviour_logp).exp()
        return rho.clamp(1 - self.low, 1 + self.high) / rho


DENOMINATORS = {
    "current": "current-denominator", "behaviour": "behaviour-denominator", "sequence": "sequence-denominator",
    "one": "unit-denominator", "shaped": "shaped-denominator",
}  # fmt: skip
MASKS = {"none": None, "clip": "clip-mask", "weight-clip": "weight-clip-mask", "sequence-clip": "sequence-clip-mask"}
"""Parts by the names that they had as modes, in runs of before."""


class UnifiedGradient(TokenObjective):
    """loss[b,t] = -m A pi / pi_ref, so that the gradient is that of the unified estimator (arXiv:2509.04419, eq. 8):

        -grad = m * (1 / pi_ref) * A * grad pi,    m and pi_ref without gradient.

    Shapes: [B, T].

    Args:
        denominator: pi_ref.
        mask: m; None: 1.

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(advantages=torch.tensor([2.0]), behaviour_logp=torch.tensor([-1.0]))
    >>> UnifiedGradient()(rows, TokenLogProbs(torch.tensor([-1.0]))).tolist()
    [-2.0]
    """

    denominator: Denominator = BehaviourDenominator()
    mask: StabilisingMask | None = None

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        values = upgraded(upgraded(values, "denominator", DENOMINATORS), "mask", MASKS)
        clip = {k: values.pop(k) for k in ("low", "high") if k in values}  # once fields of the objective
        shape = {k: values.pop(k) for k in ("shape",) if k in values}
        if values.get("mask") is not None:
            values["mask"] = {**values["mask"], **clip}
        if values.get("denominator", {}).get("part") == ShapedDenominator.name:
            values["denominator"] = {**values["denominator"], **shape}
        return values

    @property
    def uses_behaviour(self) -> bool:  # type: ignore[override]  # a constant elsewhere, here it follows from the fields
        """Whether its denominator or mask has the policy that sampled in it."""
        return self.denominator.uses_behaviour or self.mask is not None

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        logp = policy.logp.detach()
        ratio = (policy.logp - self.denominator.log_reference(batch, logp)).exp()
        kept = 1.0 if self.mask is None else self.mask(batch, logp)
        return -kept * batch.advantages * ratio


class Hybrid(TokenObjective):
    """On sampled rows another objective, on written ones coefficient * -log pi.

    The loop averages the two kinds apart, sampled rows by the method's aggregation, each written one over its tokens,
    and counts them by the share of the problems that have rows of the kind.

    Args:
        sampled: what is minimised on the policy's own completions.
        coefficient: weight of the worked answers' log-likelihood.

    Shapes: [B, T]. The first row was sampled, the second written:

    >>> from types import SimpleNamespace as Rows
    >>> logp = torch.tensor([[-1.0], [-2.0]])
    >>> rows = Rows(sampled=torch.tensor([True, False]), advantages=torch.ones(2, 1), behaviour_logp=logp)
    >>> Hybrid(coefficient=0.5)(rows, TokenLogProbs(logp)).tolist()
    [[-1.0], [1.0]]
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
