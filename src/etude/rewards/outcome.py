"""Scores of what happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode
from etude.core.fields import NonNegative, Probability
from etude.core.slots import Context, Reward, TokenReward


class TaskReward(TokenReward):
    """What the task's environment paid, each turn's on that turn's last token.

    Shapes: [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> from etude.core.episodes import Problem, Segment
    >>> asked, said = Segment("user", tokens=[5]), Segment("assistant", tokens=[6, 7], action_mask=[1, 1], reward=1.0)
    >>> rows = Rows(rewards=torch.zeros(1, 3), episodes=[Episode(Problem("sum/1", "1+1="), [asked, said])])
    >>> TaskReward(weight=2.0).shape(rows).tolist()
    [[0.0, 0.0, 2.0]]
    """

    weight: NonNegative = 1.0

    def shape(self, batch: TokenBatch) -> Tensor:
        places, values = [], []
        for row, episode in enumerate(batch.episodes):
            end = 0
            for segment in episode.segments:
                end += len(segment.tokens)
                if segment.reward and any(segment.action_mask):
                    places.append((row, end - 1))
                    values.append(self.weight * segment.reward)
        placed = torch.zeros_like(batch.rewards)
        if places:
            rows, columns = zip(*places)
            placed[list(rows), list(columns)] = torch.tensor(values, dtype=torch.float64).to(placed)
        return placed


class OverlongPenalty(Reward):
    """DAPO's soft overlong punishment (arXiv:2503.14476, eq. 13).

    With limit L and buffer b = buffer * L: 0 up to L - b tokens, then falling linearly to -weight at L; a completion
    that was cut gets -weight, by the context as by the limit. Every turn is a completion: their penalties add up.

    With a limit of 100 tokens and a buffer of 20, 90 tokens are half too many:

    >>> from types import SimpleNamespace as Run
    >>> from etude.core.episodes import Problem, Segment
    >>> said = Episode(Problem("sum/1", "1+1="), [Segment("assistant", tokens=[7] * 90, action_mask=[1] * 90)])
    >>> OverlongPenalty(buffer=0.2).score([said], Run(max_tokens=100))
    [-0.5]
    """

    judges: ClassVar[bool] = False
    buffer: Probability = 0.2
    weight: NonNegative = 1.0

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [self.weight * self._penalty(e, context.max_tokens) for e in episodes]

    def _penalty(self, episode: Episode, limit: int) -> float:
        turns = [self._of_turn(sum(s.action_mask), limit) for s in episode.turns]
        if episode.stop.cut:
            turns[-1:] = [-1.0]
        return sum(turns)

    def _of_turn(self, tokens: int, limit: int) -> float:
        """From 0 to -1; a turn of `limit` tokens was cut, or used up what it had."""
        if tokens >= limit:
            return -1.0
        over = tokens - (1 - self.buffer) * limit
        return -over / (self.buffer * limit) if over > 0 else 0.0
