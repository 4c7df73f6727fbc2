"""How log-probabilities and advantages go together: what moves a softmax policy's entropy (arXiv:2505.22617)."""

from __future__ import annotations

import torch
from torch import Tensor

from etude.core.batches import TokenBatch


def covariance(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """(log pi - mean log pi)(A - mean A) where `mask` is, else 0: its mean over the mask is their covariance.

    Shapes: all [B, T].

    >>> logp, advantages = torch.tensor([[-1.0, -3.0, 0.0]]), torch.tensor([[1.0, -1.0, 9.0]])
    >>> covariance(logp, advantages, torch.tensor([[True, True, False]])).tolist()
    [[1.0, 1.0, 0.0]]
    """
    found = torch.zeros_like(logp)
    x, a = logp[mask], advantages[mask]
    found[mask] = (x - x.mean()) * (a - a.mean()) if len(x) else x
    return found


def of_samples(batch: TokenBatch) -> float:
    """Cov(log pi, A) over the tokens that the policy sampled, each as it was then, in nats; 0 where there are none."""
    assert batch.advantages is not None
    own = batch.action_mask & batch.on_policy[:, None]
    found = covariance(batch.behaviour_logp.double(), batch.advantages.double(), own).sum()
    return float(found / own.sum().clamp(min=1))
