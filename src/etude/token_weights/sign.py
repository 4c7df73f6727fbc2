"""Which tokens take part, by whether they are encouraged or discouraged."""

from __future__ import annotations

from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.slots import TokenWeights


class PositiveOnly(TokenWeights):
    """1[A[b,t] > 0]: only what did better than the others is learned from (PSR, arXiv:2506.01347).

    Advantages are of the whole group, and the denominator of the loss stays that of all tokens, so that this part and
    `NegativeOnly` add up to the loss without either. Where rewards are 0 and 1 the sign of A is that of published code,
    which asks r > 0. Written rows always count.

    Shapes: advantages [B, T] -> factors [B, T].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(advantages=torch.tensor([[0.5, 0.0], [-0.5, -0.5]]), sampled=torch.tensor([True, True]))
    >>> PositiveOnly()(rows, TokenLogProbs(torch.zeros(2, 2))).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        return ((batch.advantages > 0) | ~batch.sampled[:, None]).to(policy.logp)


class NegativeOnly(TokenWeights):
    """1[A[b,t] < 0]: only what did worse than the others is learned from (NSR, arXiv:2506.01347).

    As `PositiveOnly`; published code asks r < 1.

    Shapes: advantages [B, T] -> factors [B, T].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(advantages=torch.tensor([[0.5, 0.0], [-0.5, -0.5]]), sampled=torch.tensor([True, True]))
    >>> NegativeOnly()(rows, TokenLogProbs(torch.zeros(2, 2))).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        return ((batch.advantages < 0) | ~batch.sampled[:, None]).to(policy.logp)
