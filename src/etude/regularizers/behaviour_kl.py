"""Staying near the policy that acted: PPO's penalties instead of its clip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from etude.core.fields import NonNegative, Positive
from etude.core.part import Need
from etude.core.step_slots import StepRegularizer
from etude.core.transitions import ActionLogProbs, Transitions


class BehaviourKL(StepRegularizer):
    """beta * KL(pi_old || pi) of every step, exact, in nats (arXiv:1707.06347, eq. 8 with beta fixed).

    Shapes: [P, N].

    >>> BehaviourKL(beta=2.0)(None, ActionLogProbs(torch.tensor([[-1.0]]), kl=torch.tensor([[0.25]]))).tolist()
    [[0.5]]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.KL})
    beta: NonNegative = 1.0

    def __call__(self, batch: Transitions, policy: ActionLogProbs) -> Tensor:
        assert policy.kl is not None
        return self.beta * policy.kl


class AdaptiveBehaviourKL(BehaviourKL):
    """As `BehaviourKL`, with a beta per member that follows the KL it leads to (arXiv:1707.06347, section 4).

    After each rollout's update, with d the mean KL(pi_old || pi) over the rollout:

        d < target / 1.5: beta <- beta / 2;     d > 1.5 target: beta <- 2 beta.

    Args:
        target: d_targ, in nats.
        beta: where it starts.

    Shapes: [P, N]; beta [P, 1].

    >>> part = AdaptiveBehaviourKL(beta=1.0, target=0.25).bind()
    >>> part.observe({"kl": torch.tensor([0.125, 0.25, 0.5])})
    >>> part.state["beta"].tolist()
    [[0.5], [1.0], [2.0]]
    """

    beta: Positive = 1.0
    target: Positive = 0.01

    def __call__(self, batch: Transitions, policy: ActionLogProbs) -> Tensor:
        assert policy.kl is not None
        beta: float | Tensor = self.state.get("beta", self.beta)
        return beta * policy.kl

    def observe(self, measured: Mapping[str, Tensor]) -> None:
        """Adapt beta to `measured["kl"]` [P]."""
        kl = measured["kl"][:, None]
        beta = self.state.get("beta", torch.ones_like(kl) * self.beta)
        low, high = kl < torch.ones_like(kl) * self.target / 1.5, kl > torch.ones_like(kl) * self.target * 1.5
        self.state["beta"] = torch.where(low, beta / 2, torch.where(high, beta * 2, beta))
