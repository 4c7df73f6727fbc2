"""Small parts that change scores before anything is learned from them."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.rows import last_action
from etude.core.slots import GroupReward, TokenReward


class MissingEnd(TokenReward):
    """A completion that was cut before its end is worth `value`, whatever the parts before paid (arXiv:2404.16767).

    Shapes: [B, T]; the difference stands on the last action token.

    >>> from types import SimpleNamespace as Rows
    >>> from etude.core.episodes import Episode, Problem, StopReason
    >>> reasons = StopReason.MAX_TOKENS, StopReason.TERMINATED
    >>> cut, whole = (Episode(Problem("p", "?"), [], stop=why) for why in reasons)
    >>> rows = Rows(rewards=torch.tensor([[0.0, 0.5], [0.0, 0.5]]), scores=torch.tensor([0.5, 0.5]))
    >>> rows.episodes, rows.action_mask = [cut, whole], torch.ones(2, 2)
    >>> (rows.rewards + MissingEnd(value=-1.0).shape(rows)).tolist()
    [[0.0, -1.0], [0.0, 0.5]]
    """

    judges: ClassVar[bool] = False
    value: float = -1.0

    def shape(self, batch: TokenBatch) -> Tensor:
        cut = torch.tensor([e.stop.cut for e in batch.episodes], device=batch.scores.device)
        missing = torch.where(cut, self.value - batch.scores, 0.0).to(batch.rewards)
        return torch.zeros_like(batch.rewards).scatter(1, last_action(batch)[:, None], missing[:, None])


class WhitenedScores(GroupReward):
    """(r - mean) / sqrt(var + 1e-8) over all completions of a step, with the population's variance.

    Where differences alone are learned from, as by pair losses, only the division matters: a gap is then one in
    standard deviations.

    Shapes: [B].

    >>> from types import SimpleNamespace as Rows
    >>> [round(x, 4) for x in WhitenedScores().rescore(Rows(scores=torch.tensor([1.0, 5.0]))).tolist()]
    [-1.0, 1.0]
    """

    def rescore(self, batch: TokenBatch) -> Tensor:
        away = batch.scores - batch.scores.mean()
        return away * (away.square().mean() + 1e-8).rsqrt()
