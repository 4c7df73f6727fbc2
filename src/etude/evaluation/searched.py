"""How good a policy is with a search: one answer for each problem, and the tokens that finding it took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from etude.core.episodes import Episode
from etude.core.errors import ConfigError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.evaluation.intervals import Interval
from etude.evaluation.pass_at_k import over_problems
from etude.experience.groups import Groups
from etude.planners.search import Search
from etude.planners.trees import Trees

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

ROWS = 512
"""Answers that are sampled at a time."""


@dataclass
class Searched:
    """What was found on one split.

    Shapes: correct, tokens [problems]; `tokens` counts all that were sampled on the way, `episodes` are the answers.
    """

    split: str
    correct: NDArray[np.bool_]
    tokens: NDArray[np.int64]
    episodes: list[Episode]

    def summary(self) -> dict[str, Interval]:
        """The share of right answers, what they are paid, and the tokens said for each problem, with intervals."""
        paid = np.array([e.reward for e in self.episodes])
        scores = {"accuracy": self.correct, "reward": paid, "tokens": self.tokens}
        return {name: over_problems(values) for name, values in scores.items()}


def search_split(
    policy: LanguagePolicy, task: LanguageTask, split: str, search: Search, *, problems: int = 100, seed: int = 0,
    experience: Groups | None = None,
) -> Searched:  # fmt: skip
    """Search for one answer to each of the first `problems` problems of a split.

    Random numbers have the addresses that they have in `evaluate_split` with the same seed: `best-of:1` is its first
    sample, and no problem's answer depends on which others there are.

    Args:
        experience: how tokens are sampled, and the limit of an answer; temperature 1 by default.

    Raises: ConfigError for a task of several turns, or one whose answers only a reward can judge.
    """
    check_searchable(task)
    how, pool = experience or Groups(), task.problems(split)
    chosen = [pool[i] for i in range(min(problems, len(pool)))]
    context = Context(
        task, policy, Stream(seed).split("evaluation", split), max_tokens=how.max_tokens or task.max_tokens
    )
    episodes: list[Episode] = []
    tokens: list[int] = []
    at_a_time = max(1, ROWS // search.rows)
    for place in range(0, len(chosen), at_a_time):
        some = chosen[place : place + at_a_time]
        whole = how.sampling(context)
        trees = Trees(some, context, whole, search.step(whole))
        episodes += trees.judged(search.find(trees))
        tokens += trees.generated
    return Searched(split, np.array([task.success(e) for e in episodes]), np.array(tokens), episodes)


def check_searchable(task: LanguageTask) -> None:
    """Raise ConfigError for a task in which a search finds no way."""
    if task.max_turns > 1:
        raise ConfigError(
            f"A search looks for one answer, and {task.id} has up to {task.max_turns} turns: leave it out."
        )
    if task.judged_by_reward:
        raise ConfigError(
            f"{task.id} has no answers, so nothing says whether what a search finds is right: leave it out."
        )
