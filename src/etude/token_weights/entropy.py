"""Which tokens take part, by how undecided the policy is at them."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.fields import NonNegative, Probability
from etude.core.part import Need
from etude.core.slots import TokenWeights


class HighEntropyTokens(TokenWeights):
    """1[H[b,t] >= tau] on the objective: only the `share` of tokens with the highest entropy is learned from.

    H[b,t] = -sum_v p(v) log p(v) over the whole vocabulary, in nats, under the current policy at the temperature that
    was sampled with; tau is the (1 - share) quantile of H over all action tokens of the minibatch at once, not of
    each completion. Tokens at tau are kept, so with N distinct entropies floor(share (N - 1)) + 1 tokens remain; all
    with share 1, none with share 0. The denominator of the loss stays the number of all tokens, so that what is
    kept and its complement add up to the loss without a mask. Tokens of written rows always count.

    Shapes: entropies [B, T] -> factors [B, T], 0 or 1.

    Args:
        share: rho, how many tokens are kept.
        threshold: a fixed tau in nats instead of the quantile.
        complement: keep exactly the other tokens.

    >>> entropy = torch.tensor([[0.0, 0.1, 1.2], [0.3, 0.7, 0.2]])
    >>> high_entropy(entropy, torch.ones(2, 3, dtype=torch.bool), 0.2).int().tolist()
    [[0, 0, 1], [0, 1, 0]]

    Source: arXiv:2506.01939, eq. 5.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENTROPY})
    share: Probability = 0.2
    threshold: NonNegative | None = None
    complement: bool = False

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert policy.entropy is not None
        own = batch.action_mask & batch.sampled[:, None]
        if self.threshold is None:
            kept = high_entropy(policy.entropy, own, self.share)
        else:
            kept = own & (policy.entropy >= self.threshold)
        if self.complement:
            kept = own & ~kept
        return (kept | ~own).to(policy.logp.dtype)


def high_entropy(entropy: Tensor, mask: Tensor, share: float) -> Tensor:
    """True where `mask` is and `entropy` is at least its (1 - share) quantile over the mask; all of one shape."""
    entropies = entropy[mask]
    if not len(entropies) or share == 0:
        return torch.zeros_like(mask)
    most = int(share * (len(entropies) - 1)) + 1
    return mask & (entropy >= entropies.topk(most).values[-1])
