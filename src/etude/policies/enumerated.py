"""What is exactly true of softmax policies over a few dozen responses: sums over every one of them."""

from __future__ import annotations

import torch
from torch import Tensor

from etude.policies.tabular import SoftmaxTree

KS = (1, 4, 16)


@torch.no_grad()
def exact(policy: SoftmaxTree, rewards: Tensor) -> dict[str, Tensor]:
    """What is true of each member's policy [P]: expected reward, pass@k and entropy, means over the prompts."""
    probs = policy.probs()
    solved = (probs * (rewards >= 1)).sum(-1).clamp(0, 1)
    measures = {"reward": (probs * rewards).sum(-1).mean(1), "entropy": policy.entropy().mean(1)}
    return measures | {f"pass@{k}": (1 - (1 - solved) ** k).mean(1) for k in KS}


@torch.no_grad()
def value_error(policy: SoftmaxTree, rewards: Tensor) -> Tensor:
    """[P] root of the mean squared error of a member's values, over the prefixes as it comes to them now."""
    reached, worth = policy.reached(), policy.worth(rewards)
    error = (torch.stack(list(policy.values)) - worth).square()
    return ((reached * error).nansum((1, 2)) / reached.sum((1, 2))).sqrt()


@torch.no_grad()
def covariance(policy: SoftmaxTree, rewards: Tensor) -> Tensor:
    """[P] Cov(log pi(y), r(y)) over the responses y, means over the prompts, in nats.

    A natural gradient step of rate eta adds eta (r(y) - E r) to log pi(y), to first order, so entropy changes by -eta
    times this (arXiv:2505.22617, theorem 2; the covariance with the advantage is that with the reward).
    """
    logp, probs = policy.logp(), policy.probs()
    centred = logp + policy.entropy()[..., None]
    return (probs * centred * rewards).sum(-1).mean(1)
