"""Rewards of control on a common scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from etude.core.fields import Positive, Probability
from etude.core.step_slots import StepReward
from etude.core.transitions import Transitions
from etude.policies.control.observations import merged


class NormalizeRewards(StepReward):
    """Rewards divided by the standard deviation of the discounted sum of past rewards, cut at `clip`.

        R_t = gamma (1 - done_{t-1}) R_{t-1} + r_t,   r_t <- clip(r_t / sqrt(Var[R] + 1e-8))

    The variance is over all steps of the member so far, this whole rollout included (arXiv:2005.12729, section 3);
    Gymnasium's wrapper divides each step by the variance up to that step. Each member has its own; steps of discarded
    episodes are not among them. Rewards and what is returned are [P, T, E].

    With gamma = 0 the sums are the rewards, 2 and 6, whose deviation is 2:

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(rewards=torch.tensor([[[2.0], [6.0]]]), weights=None)
    >>> rows.terminated = rows.truncated = torch.zeros(1, 2, 1, dtype=torch.bool)
    >>> NormalizeRewards(gamma=0.0).bind().shape(rows).flatten().tolist()
    [1.0, 3.0]
    """

    gamma: Probability = 0.99
    clip: Positive = 10.0

    def initial_state(self) -> dict[str, Any]:
        return {"count": 0.0}

    def forget(self) -> None:
        self.state.pop("running", None)

    def shape(self, batch: Transitions) -> Tensor:
        rewards = batch.rewards.double()
        done, state = batch.terminated | batch.truncated, self.state
        running = state.get("running", torch.zeros_like(rewards[:, 0]))
        normalized = torch.empty_like(rewards)
        for t in range(rewards.shape[1]):
            running = normalized[:, t] = self.gamma * running + rewards[:, t]
            running = running * ~done[:, t]
        before = (state.get("mean", 0.0), state.get("variance", 0.0), state["count"])
        weights = None if batch.weights is None else batch.weights.flatten(1)
        mean, variance, count = merged(normalized.flatten(1), *before, weights)
        state |= {"running": running, "mean": mean, "variance": variance, "count": count}
        scale = (variance + 1e-8).sqrt()[:, None]
        scaled = (rewards / scale).flatten(1).clamp(-self.clip, self.clip)
        return scaled.view_as(rewards).to(batch.rewards.dtype)
