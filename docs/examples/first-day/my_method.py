"""GRPO with a loss of my own: ratios are not clipped, they pay for leaving 1."""

from etude.core.slots import TokenObjective
from etude.methods.rlvr.grpo import grpo


class Unclipped(TokenObjective):
    """-rho * A + strength * (rho - 1)^2 / 2."""

    uses_behaviour = True  # log-probabilities when it was sampled
    strength: float = 1.0

    def __call__(self, batch, policy):
        ratio = (policy.logp - batch.behaviour_logp).exp()
        return -ratio * batch.advantages + self.strength * (ratio - 1) ** 2 / 2


my_method = grpo.replace(id="my-method", objective=Unclipped())
