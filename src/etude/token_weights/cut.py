"""Which tokens take part, by how their completion ended."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.slots import TokenWeights


class UncutCompletions(TokenWeights):
    """1 on completions that came to an end, 0 on those that a limit cut: overlong filtering (DAPO, arXiv:2503.14476).

    What was cut keeps its reward, so it still counts in the statistics of its group, and in the loss's denominator; it
    adds nothing to the loss, regularizers and critic included (section 3.4).

    Shapes: B rows, each of an episode -> factors [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> from etude.core.episodes import StopReason
    >>> ends = [Rows(stop=StopReason.END_OF_TEXT), Rows(stop=StopReason.MAX_TOKENS)]
    >>> UncutCompletions()(Rows(episodes=ends), TokenLogProbs(torch.zeros(2, 3))).tolist()
    [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """

    everywhere: ClassVar[bool] = True

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        ended = policy.logp.new_tensor([float(not e.stop.cut) for e in batch.episodes])
        return ended[:, None] * torch.ones_like(policy.logp)
