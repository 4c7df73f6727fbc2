"""Credit over turns: which turn of its episode a token belongs to, and what turns make of the credit that it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean, GroupStd
from etude.core.batches import TokenBatch
from etude.core.part import Part
from etude.core.slots import TokenAdvantages
from etude.core.worlds import World

if TYPE_CHECKING:
    from etude.core.method import Method


def turns(batch: TokenBatch) -> Tensor:
    """[B, T] number of the turn of its episode that each action token belongs to, from 0 on; -1 outside.

    A turn is what was sampled at a time: a segment. Those of an episode of several rows are counted through.
    """
    begins = torch.zeros_like(batch.action_mask, device="cpu")
    for row, episode in enumerate(batch.episodes):
        place = 0
        for s in episode.segments:
            if any(s.action_mask):
                begins[row, max(1, place + list(s.action_mask).index(1))] = True  # nothing predicts the first token
            place += len(s.tokens)
    number = (begins.to(batch.action_mask.device) & batch.action_mask).long().cumsum(1) - 1
    if batch.once() is not None and batch.episode is not None:
        said = dict[int, int]()
        for row, (episode_number, count) in enumerate(zip(batch.episode.tolist(), (number.amax(1) + 1).tolist())):
            number[row] += said.get(episode_number, 0)
            said[episode_number] = said.get(episode_number, 0) + count
    return torch.where(batch.action_mask, number, -1)


def turn_ends(batch: TokenBatch) -> Tensor:
    """[B, T] True on the last action token of each turn."""
    turn = turns(batch)
    far = torch.iinfo(turn.dtype).max
    ahead = torch.where(turn >= 0, turn, far).flip(1).cummin(1).values.flip(1)  # numbers rise: the least comes next
    next_one = torch.cat([ahead[:, 1:], torch.full_like(ahead[:, :1], far)], 1)
    return (turn >= 0) & (next_one > turn)


@dataclass
class Turns:
    """The N turns of a batch that the policy sampled, in their order, episode by episode.

    Args:
        of: [B, T] number of the turn among all N that a token belongs to, -1 outside.
        following: [N] number of the episode's next turn, -1 of the last.
        sizes: [N] tokens.
    """

    of: Tensor
    following: Tensor
    sizes: Tensor

    @classmethod
    def in_batch(cls, batch: TokenBatch) -> Turns:
        """All turns of the rows that were sampled."""
        turn = turns(batch)
        on = (turn >= 0) & batch.sampled[:, None]
        episode = torch.arange(len(batch), device=turn.device) if batch.episode is None else batch.episode
        key = episode[:, None] * (int(turn.max()) + 2) + turn
        known, number, sizes = torch.unique(key[on], return_inverse=True, return_counts=True)
        of = torch.full_like(turn, -1)
        of[on] = number
        follows = torch.arange(1, len(known) + 1, device=turn.device)
        same = torch.zeros_like(known, dtype=torch.bool)
        same[:-1] = known[1:] == known[:-1] + 1
        return cls(of, torch.where(same, follows, -1), sizes)

    def means(self, values: Tensor) -> Tensor:
        """[N] mean of values [B, T] over the tokens of each turn."""
        on = self.of >= 0
        sums = values.new_zeros(len(self.sizes)).index_add(0, self.of[on], values[on])
        return sums / self.sizes.to(values.dtype)

    def spread(self, values: Tensor) -> Tensor:
        """[B, T] values [N] of turns at their tokens, 0 outside."""
        return torch.where(self.of >= 0, values[self.of.clamp(min=0)], 0.0)


class TurnFactors(Part, abstract=True):
    """What turns are worth beside each other."""

    slot = "factors"

    def __call__(self, batch: TokenBatch, turns: Turns) -> tuple[Tensor, Tensor]:
        """A factor on the credit of each turn [N], and what is added to it [N]."""
        raise NotImplementedError


class TurnWeights(TokenAdvantages):
    """A factor and a bonus for each turn: A[b,t] = g[n] A'[b,t] + f[n] - mean_n, for the tokens t of turn n.

    mean_n is the mean over the batch's N turns of what they have by then, however long they are.

    Shapes: [B, T].

    Args:
        of: the credit A' of tokens, mostly the same for a whole episode.
        factors: g and f.
        centred: whether the mean is subtracted.

    Two turns of one token each, of an episode worth 1, the first of which counts three times as much:

    >>> from etude.core.episodes import Episode, Segment
    >>> from etude.core.rows import to_batch
    >>> turn = lambda token: Segment("assistant", "", [token], [1], [0.0])
    >>> episode = Episode(None, [Segment("user", "", [5], [0], [0.0]), turn(6), turn(7)])
    >>> class Credit(TokenAdvantages, abstract=True):
    ...     def __call__(self, batch): return torch.ones(1, 3)
    >>> class ThreeToOne(TurnFactors, abstract=True):
    ...     def __call__(self, batch, turns): return torch.tensor([1.5, 0.5]), torch.zeros(2)
    >>> weights = TurnWeights(of=Credit(), factors=ThreeToOne(), centred=False)
    >>> weights(to_batch([episode], 0, 1.0, torch.device("cpu"))).tolist()
    [[1.0, 1.5, 0.5]]
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    of: TokenAdvantages = GroupAdvantage(centre=GroupMean(), scale=GroupStd())
    factors: TurnFactors | None = None
    centred: bool = True

    def objection(self, method: Method) -> str | None:
        return "has nothing to weigh turns by: set advantages.factors." if self.factors is None else None

    def __call__(self, batch: TokenBatch) -> Tensor:
        credit = self.of(batch)
        if self.factors is None or not bool(batch.sampled.any()):
            return credit
        turns = Turns.in_batch(batch)
        factor, bonus = self.factors(batch, turns)
        found = turns.spread(factor) * credit + turns.spread(bonus)
        if self.centred:
            found = found - turns.spread(turns.means(found).mean().expand(len(turns.sizes)))
        return torch.where(turns.of >= 0, found, credit)

    def returns(self, batch: TokenBatch) -> Tensor | None:
        return self.of.returns(batch)
