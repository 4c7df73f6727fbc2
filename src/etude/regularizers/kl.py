"""Staying near a reference policy."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.fields import NonNegative
from etude.core.part import Need
from etude.core.slots import TokenRegularizer

Estimator = Literal["k1", "k2", "k3"]


def kl_estimate(logp: Tensor, reference_logp: Tensor, estimator: Estimator) -> Tensor:
    """Per-sample estimates of KL(pi || reference) for tokens drawn from pi (Schulman, 2020).

    With d = log reference - log pi: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1. k1 and k3 are unbiased in value;
    as a loss only k2's gradient is that of the reverse KL (k3's is that of the forward KL, k1's is zero on average).

    >>> import torch
    >>> [round(kl_estimate(torch.tensor(0.0), torch.tensor(-1.0), k).item(), 4) for k in ("k1", "k2", "k3")]
    [1.0, 0.5, 0.3679]
    """
    d = reference_logp - logp
    if estimator == "k1":
        return -d
    return d**2 / 2 if estimator == "k2" else d.exp() - d - 1


class KLToReference(TokenRegularizer):
    """coefficient * KL(pi || reference) per token, estimated as in `kl_estimate`; GRPO's is k3.

    Tokens come from pi_old. Away from it, `weighted` multiplies by rho = pi / pi_old, gradient included, which makes
    E[rho k3] and its gradient those of KL(pi || reference) exactly (arXiv:2505.17508, section 4).

    Shapes: [B, T].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> batch, policy = Rows(reference_logp=torch.tensor([-1.0])), TokenLogProbs(torch.tensor([-3.0]))
    >>> KLToReference(coefficient=0.5, estimator="k2")(batch, policy).tolist()
    [1.0]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE_LOGP})
    coefficient: NonNegative = 0.04
    estimator: Estimator = "k3"
    weighted: bool = False

    @property
    def uses_behaviour(self) -> bool:  # type: ignore[override]  # a constant elsewhere, here it follows from the fields
        """Whether rho is in it."""
        return self.weighted

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.reference_logp is not None
        divergence = self.coefficient * kl_estimate(policy.logp, batch.reference_logp, self.estimator)
        return divergence * (policy.logp - batch.behaviour_logp).exp() if self.weighted else divergence
