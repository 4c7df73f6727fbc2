"""Rewards for how a completion is written, whatever it says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from etude.core.episodes import Episode
from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative
from etude.core.slots import Context, Reward


class FormatReward(Reward):
    """`weight` for a completion that was not cut and has the form that the task reads answers from, else 0.

    Args:
        pattern: a regular expression that the whole completion must match; empty: the task finds an answer in it.

    Raises: ConfigError if `pattern` is no regular expression.

    >>> from etude.core.episodes import Problem, Segment
    >>> said = [Episode(Problem("sum/1", "1+1="), [Segment("assistant", text)]) for text in ("(2)", "2")]
    >>> FormatReward(pattern="[(].*[)]", weight=0.5).score(said, None)
    [0.5, 0.0]
    """

    judges: ClassVar[bool] = False
    pattern: str = ""
    weight: NonNegative = 1.0

    def check(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(
                f"FormatReward.pattern must be a regular expression, got {self.pattern!r}: {error}."
            ) from None

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [self.weight * self._fits(e, context) for e in episodes]

    def _fits(self, episode: Episode, context: Context) -> bool:
        if episode.stop.cut:
            return False
        if self.pattern:
            return re.fullmatch(self.pattern, episode.completion, re.DOTALL) is not None
        return bool(context.task.answer(episode.completion).strip())


class RepetitionPenalty(Reward):
    """-weight * (1 - distinct / all) of the sampled n-grams of tokens; 0 for a text shorter than one.

    Args:
        size: n.

    The bigrams of a b a b a are ab, ba, ab, ba: 2 of 4 are distinct, so it costs half of `weight`:

    >>> from etude.core.episodes import Problem, Segment
    >>> said = Segment("assistant", tokens=[1, 2, 1, 2, 1], action_mask=[1] * 5)
    >>> RepetitionPenalty(size=2).score([Episode(Problem("sum/1", "1+1="), [said])], None)
    [-0.5]

    Reference: arXiv:2502.03373, section 4; an option of arXiv:2503.16219.
    """

    judges: ClassVar[bool] = False
    size: Count = 3
    weight: NonNegative = 1.0

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [-self.weight * repetition(sampled(e), self.size) for e in episodes]


def sampled(episode: Episode) -> list[int]:
    """The tokens that the policy said, in order."""
    return [t for s in episode.segments for t, mine in zip(s.tokens, s.action_mask) if mine]


def repetition(tokens: Sequence[int], size: int) -> float:
    """Share of the n-grams of `size` tokens that occurred before; 0 if there are none.

    >>> repetition([1, 2, 1, 2, 1], 2)
    0.5
    """
    count = len(tokens) - size + 1
    if count < 1:
        return 0.0
    return 1 - len(set(zip(*(tokens[i:] for i in range(size))))) / count
