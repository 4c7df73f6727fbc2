"""Credit from rewards to come: reward-to-go, and generalized advantage estimation with a critic."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.fields import Probability
from etude.core.slots import Advantages


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float, bootstrap: Tensor | None = None
) -> Tensor:
    """Generalized advantage estimation (arXiv:1506.02438, eq. 16) over the action tokens of each row.

        delta_t = r_t + gamma V_{t+1} - V_t,    A_t = delta_t + gamma lam A_{t+1}

    Observation tokens between two turns are skipped, not discounted. After the last action token V is `bootstrap`
    ([B], 0 if not given: the episode terminated).

    Shapes: rewards, values, mask [B, T] -> advantages [B, T], zero outside the mask.
    """
    advantage = torch.zeros_like(values[:, 0])
    following = torch.zeros_like(advantage) if bootstrap is None else bootstrap.to(values.dtype)
    out = torch.zeros_like(values)
    for t in range(values.shape[1] - 1, -1, -1):
        on = mask[:, t]
        delta = rewards[:, t] + gamma * following - values[:, t]
        advantage = torch.where(on, delta + gamma * lam * advantage, advantage)
        following = torch.where(on, values[:, t], following)
        out[:, t] = torch.where(on, advantage, out[:, t])
    return out


def rewards_to_go(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """[B, T] sum of gamma^k r_{t+k} over the action tokens from t on."""
    return gae(rewards, torch.zeros_like(rewards), mask, gamma, 1.0)


def standardized(values: Tensor, mask: Tensor) -> Tensor:
    """[B, T] values with mean 0 and standard deviation 1 over the mask (unchanged if all are equal)."""
    on = values[mask]
    spread = on.std(correction=0) if len(on) else on.new_tensor(0.0)
    return torch.where(mask, (values - on.mean()) / spread.clamp(min=1e-8), values) if float(spread) > 0 else values


class RewardToGo(Advantages):
    """G_t = sum_k gamma^k r_{t+k}, minus a baseline: the REINFORCE estimator (Williams, 1992).

    baseline: 'none', or the 'batch' mean of the rows' total rewards.
    """

    gamma: Probability = 1.0
    baseline: Literal["none", "batch"] = "batch"

    def __call__(self, batch: TokenBatch) -> Tensor:
        returns = rewards_to_go(batch.rewards, batch.action_mask, self.gamma)
        if self.baseline == "batch":
            returns = returns - batch.scores.mean()
        return returns * batch.action_mask


class GAE(Advantages):
    """Generalized advantage estimation with the method's critic (arXiv:1506.02438), optionally standardised.

    A completion that was cut off bootstraps from its last value instead of 0: truncated is not terminated.
    Also leaves `batch.returns` = A + V, the critic's target.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"values"})
    gamma: Probability = 1.0
    lam: Probability = 0.95
    standardize: bool = True
    bootstrap_truncated: bool = True

    def objection(self, method: object) -> str | None:
        if getattr(method, "critic", None) is None:
            return "is computed from values that no critic learns: add one (--with token-critic)."
        return None

    def __call__(self, batch: TokenBatch) -> Tensor:
        assert batch.values is not None
        last = batch.action_mask.shape[1] - 1 - batch.action_mask.flip(1).int().argmax(1)
        final = batch.values.gather(1, last[:, None])[:, 0]
        cut = final * batch.truncated if self.bootstrap_truncated else None
        advantages = gae(batch.rewards, batch.values, batch.action_mask, self.gamma, self.lam, cut)
        batch.returns = (advantages + batch.values) * batch.action_mask
        return standardized(advantages, batch.action_mask) if self.standardize else advantages
