"""Answers with slack in their length: sums whose worked answers write totals down again and again."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from etude.core.episodes import Problem
from etude.core.fields import Count, Probability
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.experiments.arms import START
from etude.tasks.language.sums import Sums

FREE = 64
"""Tokens of a completion before there is a limit worth the name."""
WARM = 200
"""Supervised steps after which a policy is as wordy as the worked answers."""


class Wordy(Sums):
    """Sums whose worked answers write running totals down again and again: 8;8;8,17;17,19.

    Args:
        again: chance of writing a total (but the last) once more, each time; at most three times more.
        max_tokens: limit of one completion.
    """

    again: Probability = 0.6
    max_tokens: Count = FREE  # type: ignore[misc]  # of each task, where others have one for all

    def demonstration(self, problem: Problem) -> str:
        random = Stream(self.seed).split("wordy", problem.id).numpy
        terms = map(int, str(problem.prompt).rstrip("=").split("+"))
        totals = list(accumulate(terms))[1:]
        times = [*np.minimum(random.geometric(1 - self.again, size=len(totals) - 1), 4), 1]
        return ",".join(";".join([str(t)] * n) for t, n in zip(totals, times))


def tokens_written(folder: str, task: Wordy, percentile: float, temperature: float = 1.0) -> int:
    """A percentile of the lengths that the policy in a folder writes on training problems, if nothing cuts them."""
    from etude.evaluation.language import evaluate_split
    from etude.policies.language import LanguagePolicy

    policy = LanguagePolicy.load(folder, device="cpu")
    how = Groups(temperature=temperature)
    looked = evaluate_split(policy, task, "train", problems=200, samples=2, seed=START, experience=how)
    return int(np.percentile([e.action_count for row in looked.episodes for e in row], percentile))
