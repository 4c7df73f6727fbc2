"""GRPO whose surrogate is not clipped, but squared: the loss is mine, everything else is GRPO's."""

from etude.core.slots import Objective
from etude.methods.rlvr.grpo import grpo


class Unclipped(Objective):
    """-rho * A + strength * (rho - 1)^2 / 2."""

    strength: float = 1.0

    def __call__(self, batch, policy):
        ratio = (policy.logp - batch.behaviour_logp).exp()
        return -ratio * batch.advantages + self.strength * (ratio - 1) ** 2 / 2


my_method = grpo.replace(id="my-method", objective=Unclipped())
