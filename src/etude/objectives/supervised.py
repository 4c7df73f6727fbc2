"""Learning from given text."""

from __future__ import annotations

from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.slots import TokenObjective


class LogLikelihood(TokenObjective):
    """loss[b,t] = -log pi[b,t]: maximum likelihood on the action tokens.

    Shapes: [B, T].

    >>> import torch
    >>> LogLikelihood()(None, TokenLogProbs(torch.tensor([-3.0, -0.5]))).tolist()
    [3.0, 0.5]
    """

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return -policy.logp
