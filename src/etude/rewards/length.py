"""Rewards that pay for a right answer by how long it took."""

from __future__ import annotations

import math
from collections.abc import Sequence

from etude.core.episodes import Episode
from etude.core.fields import Count, NonNegative
from etude.core.slots import Context, Reward


class CosineReward(Reward):
    """Right answers are worth more the shorter they are, wrong ones less (arXiv:2502.03373, section 4).

    With p the mean over the turns of min(1, tokens / length), and ends (short, long) of the answer's kind:

        r = long + (short - long) (1 + cos(pi p)) / 2

    so that a right answer falls from 1 to 0.5 and a wrong one rises from -1 to -0.5: somebody who does not know had
    better think on. A completion that was cut counts as wrong.

    Args:
        right, wrong: what an answer is worth at no length and at full length.
        length: tokens of a turn of full length; None takes the completion limit.

    Published code leaves p unclamped, so that texts longer than `length` climb again.

    >>> part = CosineReward()
    >>> [round(part.value(correct, p), 3) for correct in (True, False) for p in (0.0, 0.5, 1.0)]
    [1.0, 0.75, 0.5, -1.0, -0.75, -0.5]
    """

    right: tuple[float, float] = (1.0, 0.5)
    wrong: tuple[float, float] = (-1.0, -0.5)
    length: Count | None = None
    weight: NonNegative = 1.0

    def value(self, correct: bool, share: float) -> float:
        """The reward of one answer that took `share` of the full length, at most 1."""
        short, long = self.right if correct else self.wrong
        return long + (short - long) * (1 + math.cos(math.pi * share)) / 2

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        full = self.length or context.max_tokens
        return [self.weight * self.value(answered(e, context), length_share(e, full)) for e in episodes]


def length_share(episode: Episode, limit: int) -> float:
    """Mean over the turns of min(1, tokens / limit), `limit` being that of one turn; 0 if nothing was said."""
    shares = [min(1.0, sum(s.action_mask) / limit) for s in episode.turns]
    return sum(shares) / max(1, len(shares))


def answered(episode: Episode, context: Context) -> bool:
    """Whether the task calls the episode solved and it was not cut: what is cut has given no answer."""
    return not episode.stop.cut and bool(context.task.success(episode))
