"""Learning from given text."""

from __future__ import annotations

from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.slots import TokenObjective


class LogLikelihood(TokenObjective):
    """loss[b,t] = -log pi[b,t]: maximum likelihood on the action tokens."""

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return -policy.logp
