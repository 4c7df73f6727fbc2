"""No more steps on a rollout once the policy is far enough from the one that acted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.fields import Positive
from etude.core.part import Need
from etude.core.step_slots import StepRegularizer
from etude.core.transitions import ActionLogProbs, Transitions, per_step

if TYPE_CHECKING:
    from etude.core.method import Method


class TargetKL(StepRegularizer):
    """Ends an update before a minibatch whose estimate of KL(pi_old || pi) is above 1.5 times a target.

        k = mean(rho - 1 - log rho),  rho = pi(a|s) / pi_old(a|s);  k > 1.5 target: no more steps, epochs over

    The estimate is Schulman's third (http://joschu.net/blog/kl-approx.html), the rule that of Stable-Baselines3's
    `PPO(target_kl=...)`: the minibatch in which the bound is crossed is not learned from. Every member stops for
    itself. `optimizer_steps` in the metrics says how many steps were taken.

    Args:
        target: in nats.

    Shapes: [P, N]; the term that is added to the loss is 0.

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(behaviour_logp=torch.zeros(2, 1), mean=lambda x: x.mean(1))
    >>> TargetKL(target=0.02).enough(rows, ActionLogProbs(torch.tensor([[0.2], [0.3]])))  # 0.0214 and 0.0499
    tensor([False,  True])
    """

    target: Positive = 0.02

    def objection(self, method: Method) -> str | None:
        optimizer = method.slots().get("optimizer")
        if optimizer is not None and Need.KL in optimizer.needs:
            return f"ends epochs of small steps, and {type(optimizer).__name__} takes one within a bound of its own."
        return None

    def __call__(self, batch: Transitions, policy: ActionLogProbs) -> Tensor:
        return torch.zeros_like(per_step(batch.behaviour_logp))

    def enough(self, batch: Transitions, policy: ActionLogProbs) -> Tensor:
        log_ratio = (policy.logp - batch.behaviour_logp).detach()
        kl = batch.mean(log_ratio.exp() - 1 - log_ratio)[:, None]
        return (kl > torch.ones_like(kl) * self.target * 1.5)[:, 0]
