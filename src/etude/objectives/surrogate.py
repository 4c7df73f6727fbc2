"""The policy gradient's surrogate by importance weights, without a clip."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.slots import TokenObjective
from etude.core.step_slots import StepObjective
from etude.core.transitions import along


class Surrogate(TokenObjective, StepObjective):
    """-rho A with rho = exp(logp - behaviour_logp): what TRPO bounds and PPO clips (arXiv:1707.06347, eq. 6).

    Its gradient at the policy that acted is the policy gradient; away from it, that of a policy which would have
    gained from the same advantages. Shapes: as the log-probabilities, [B, T] or [P, N], or [P, N, C] of a chain.

    At rho = 2 an advantage of 1 has loss -2, with either clip of 0.2 it would have -1.2:

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> batch = Rows(behaviour_logp=torch.tensor([0.25]).log(), advantages=torch.tensor([1.0]))
    >>> round(Surrogate()(batch, TokenLogProbs(torch.tensor([0.5]).log())).item(), 4)
    -2.0
    """

    vanishes_with_advantage: ClassVar[bool] = True
    uses_behaviour: ClassVar[bool] = True

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        return -(policy.logp - batch.behaviour_logp).exp() * along(batch.advantages, policy.logp)

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """`behaviour_kl`: k3 estimate of KL(pi_old || pi), nats per step."""
        log_ratio = policy.logp - batch.behaviour_logp
        return {"behaviour_kl": log_ratio.exp() - 1 - log_ratio}
