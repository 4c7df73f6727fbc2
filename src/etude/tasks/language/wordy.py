"""Wordy sums: worked answers that write totals down again and again, so that answers have slack in their length.

    prompt      3+5+9+2=
    completion  8;8;8,17;17,19

The answer is the last total, as in `sums`: an answer that says each total once is as right, and half as long.
"""

from __future__ import annotations

from itertools import accumulate
from typing import ClassVar

import numpy as np

from etude.core.episodes import Problem
from etude.core.fields import Count, Probability
from etude.core.streams import Stream
from etude.tasks.language.sums import Sums


class Wordy(Sums):
    """Sums whose worked answers write running totals down again and again.

    Args:
        again: chance of writing a total (but the last) once more, each time; at most three times more.
        max_tokens: limit of one completion.

    >>> problem = Problem("sums/1", "1+2+3=", "6")
    >>> Wordy().score(problem, "3;3;3,6"), Wordy().score(problem, "3,6"), Wordy(again=0.0).demonstration(problem)
    (1.0, 1.0, '3,6')
    """

    id: ClassVar[str] = "wordy"

    again: Probability = 0.6
    max_tokens: Count = 64  # type: ignore[misc]  # of each task, where others have one for all

    def demonstration(self, problem: Problem) -> str:
        random = Stream(self.seed).split("wordy", problem.id).numpy
        terms = map(int, str(problem.prompt).rstrip("=").split("+"))
        totals = list(accumulate(terms))[1:]
        times = [*np.minimum(random.geometric(1 - self.again, size=len(totals) - 1), 4), 1]
        return ",".join(";".join([str(t)] * n) for t, n in zip(totals, times))


wordy = Wordy()
