"""Which tokens take part, by how undecided the policy is as a whole."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.fields import NonNegative
from etude.core.part import Need
from etude.core.slots import TokenWeights


class AEPO(TokenWeights):
    """1[A[b] >= 0] while entropy is high, else 1: adaptive entropy-controlled policy optimization (arXiv:2512.12967).

    H = mean over completions of the mean over their tokens of the full-vocabulary entropy of the current policy, in
    nats. Completions with A < 0 are left out from a minibatch on whose H is above `high`, which makes it fall, until
    one whose H is below `low`; in between nothing changes. The denominator of the loss stays that of all tokens.
    Written rows always count, and say nothing about H. With one update per batch H is the batch's, as published; with
    several, that of each minibatch.

    The ends are tuned for every run there (its curves stay within about 0.1 to 0.3 nats); its code is not public.

    Shapes: entropies and advantages [B, T] -> factors [B, T], 0 or 1.

    >>> band = AEPO(low=0.1, high=0.4).bind()
    >>> [band.masks(entropy) for entropy in (0.1, 0.5, 0.3, 0.05, 0.3)]
    [False, True, True, False, False]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENTROPY})
    low: NonNegative = 0.1
    high: NonNegative = 0.3

    def check(self) -> None:
        if self.low > self.high:
            raise ConfigError(f"AEPO.low must be at most high, got {self.low} and {self.high}.")

    def initial_state(self) -> dict[str, Any]:
        return {"masks": False}

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        own = batch.sampled & batch.action_mask.any(1)
        if not bool(own.any()) or not self.masks(float(self.entropy(batch, policy)[own].mean())):
            return torch.ones_like(policy.logp)
        return ((batch.advantages >= 0) | ~batch.sampled[:, None]).to(policy.logp)

    def entropy(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """[B] each completion's mean, 0 where nothing was said."""
        assert policy.entropy is not None
        said = batch.action_mask
        return torch.where(said, policy.entropy, 0.0).sum(1) / said.sum(1).clamp(min=1)

    def masks(self, entropy: float) -> bool:
        """Whether completions with A < 0 are left out from now on, H being `entropy`."""
        if entropy > self.high:
            self.state["masks"] = True
        elif entropy < self.low:
            self.state["masks"] = False
        return bool(self.state["masks"])


class SureNegatives(TokenWeights):
    """0 where A < 0 and entropy is above a limit, else 1: what was undecided is not punished (arXiv:2512.12967).

    Shapes: entropies and advantages [B, T] -> factors [B, T], 0 or 1.

    Args:
        limit: in nats.
        whole: whether it is the mean entropy of the completion that is above it, rather than the token's.

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(advantages=torch.tensor([[-1.0, -1.0], [1.0, 1.0]]), sampled=torch.tensor([True, True]))
    >>> rows.action_mask, entropy = torch.ones(2, 2, dtype=torch.bool), torch.tensor([[0.9, 0.3], [0.9, 0.3]])
    >>> said = TokenLogProbs(torch.zeros(2, 2), entropy)
    >>> SureNegatives(limit=0.5)(rows, said).tolist(), SureNegatives(limit=0.5, whole=True)(rows, said).tolist()
    ([[0.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]])
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENTROPY})
    limit: NonNegative = 0.5
    whole: bool = False

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None and policy.entropy is not None
        entropy, said = policy.entropy, batch.action_mask
        if self.whole:
            entropy = (torch.where(said, entropy, 0.0).sum(1) / said.sum(1).clamp(min=1))[:, None]
        left = (batch.advantages < 0) & (entropy > self.limit) & batch.sampled[:, None]
        return (~left).to(policy.logp)
