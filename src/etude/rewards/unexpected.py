"""What no answer should look like: loops, text that was cut, bytes that are no text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from etude.core.episodes import Episode
from etude.core.fields import Count, NonNegative
from etude.core.slots import Context, Reward

KEPT = "\n\t\r"
"""Control characters that belong to text."""


class PatternPenalty(Reward):
    """-weight for a completion that repeats itself, was cut, or is garbled; else 0.

    Args:
        times: how often in a row the same run of tokens has to stand to count as a loop.
        longest: the longest such run, in tokens.
        cut, garbled: whether the other two count.

    >>> from etude.core.episodes import Problem, Segment
    >>> loop = Segment("assistant", tokens=[1, 2] * 5, action_mask=[1] * 10)
    >>> PatternPenalty(times=5, weight=0.5).score([Episode(Problem("sum/1", "1+1="), [loop])], None)
    [-0.5]
    """

    judges: ClassVar[bool] = False
    weight: NonNegative = 1.0
    times: Count = 5
    longest: Count = 16
    cut: bool = True
    garbled: bool = True

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [-self.weight if self.unexpected(e) else 0.0 for e in episodes]

    def unexpected(self, episode: Episode) -> bool:
        """Whether an episode shows any of the patterns."""
        if self.cut and episode.stop.cut:
            return True
        if self.garbled and any(is_garbled(s.text) for s in episode.turns):
            return True
        return any(repeats(s.tokens, self.times, self.longest) for s in episode.turns)


def repeats(tokens: Sequence[int], times: int, longest: int) -> bool:
    """Whether some run of at most `longest` tokens stands `times` times in a row.

    >>> repeats([7, 1, 2, 1, 2, 1, 2, 9], times=3, longest=4), repeats([1, 2, 1, 2, 3], times=3, longest=4)
    (True, False)
    """
    x = np.asarray(tokens)
    for period in range(1, min(longest, len(x) // times) + 1):
        same = (x[period:] == x[:-period]).astype(np.int64)
        total = np.concatenate([[0], same.cumsum()])
        needed = period * (times - 1)
        if needed == 0 or bool((total[needed:] - total[:-needed] == needed).any()):
            return True
    return False


def is_garbled(text: str) -> bool:
    """Whether bytes did not decode, or control characters other than line breaks and tabs are there."""
    return any(c == "\ufffd" or (not c.isprintable() and c not in KEPT and not c.isspace()) for c in text)
