"""Which of two answers is preferred, as a chance, and scores made of comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.draws import children, uniforms
from etude.core.fields import Positive
from etude.core.part import Part
from etude.core.slots import GroupReward
from etude.objectives.pairs import AllPairs

if TYPE_CHECKING:
    from etude.core.method import Method


class Oracle(Part, abstract=True):
    """Says how likely one answer to a problem is preferred to another. Need not come from any order of them."""

    slot = "oracle"

    def __call__(self, batch: TokenBatch, first: Tensor, second: Tensor) -> Tensor:
        """P(first > second) [N] of rows with these numbers [N] each; P(second > first) is 1 - P."""
        raise NotImplementedError


class ByScore(Oracle):
    """P(y > y') = sigmoid((r(y) - r(y')) / scale), r what the parts before paid (Bradley and Terry).

    Shapes: numbers of rows [N], scores [B] -> [N].

    >>> from types import SimpleNamespace as Rows
    >>> rows, one, two = Rows(scores=torch.tensor([1.0, 1.0])), torch.tensor([0]), torch.tensor([1])
    >>> ByScore()(rows, one, two).tolist()
    [0.5]
    """

    scale: Positive = 1.0

    def __call__(self, batch: TokenBatch, first: Tensor, second: Tensor) -> Tensor:
        return ((batch.scores[first] - batch.scores[second]) / self.scale).sigmoid()


class Wins(GroupReward):
    """How many of the other answers to its problem an answer wins against: every two are compared once.

    Who wins is drawn with the oracle's chance, with a random number of the two answers' own, so that the same two come
    to the same again in whatever batch. Of two answers the winner has 1 and the loser 0.

    Shapes: [B], counts.

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([0.0, 90.0, 45.0]), group=torch.zeros(3), draw=torch.tensor([5, 6, 7]))
    >>> Wins().rescore(rows).tolist()
    [0.0, 2.0, 1.0]
    """

    oracle: Oracle = ByScore()

    def objection(self, method: Method) -> str | None:
        experience = method.slots().get("experience")
        if experience is None or experience.samples:
            return None
        return (
            f"draws who wins by the random numbers of samples, and {type(experience).__name__} gives written answers: "
            "set experience=groups, or give the data scores or ranks of their own."
        )

    def rescore(self, batch: TokenBatch) -> Tensor:
        assert batch.draw is not None
        pairs = AllPairs()(torch.zeros_like(batch.scores), batch.group)
        one, two = pairs.better, pairs.worse
        turned = batch.draw[one] > batch.draw[two]  # the same way round in whatever order rows stand
        one, two = torch.where(turned, two, one), torch.where(turned, one, two)
        drawn = uniforms(children(batch.draw[one] ^ batch.draw[two], "preferred"), 0, 1)[0]
        winner = torch.where(drawn < self.oracle(batch, one, two), one, two)
        return torch.zeros_like(batch.scores).index_add(0, winner, torch.ones_like(batch.scores[winner]))
