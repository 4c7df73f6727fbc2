"""How good a language policy is: several samples for each of many problems, scored by the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.core.batches import Episode
from etude.core.slots import Context, Reward, TokenReward
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.evaluation.intervals import Interval
from etude.evaluation.pass_at_k import over_problems, summary

BATCH = 512
"""Rollouts sampled at a time."""


@dataclass
class Evaluation:
    """What was sampled on one split.

    Shapes: correct, rewards [problems, samples]; `episodes[i][j]` is sample j of problem i.
    """

    split: str
    correct: NDArray[np.bool_]
    rewards: NDArray[np.float64]
    episodes: list[list[Episode]]
    answers: list[list[str]]

    def summary(self, ks: Sequence[int], majority: bool = False) -> dict[str, Interval]:
        """pass@k (and maj@k) for each k, and the mean reward, with bootstrap intervals over problems."""
        fitting = [k for k in ks if k <= self.correct.shape[1]]
        found = summary(self.correct, self.answers if majority else None, tuple(fitting))
        return {**found, "reward": over_problems(self.rewards.mean(1))}


def evaluate_split(
    policy: Any,
    task: LanguageTask,
    split: str,
    *,
    problems: int = 100,
    samples: int = 8,
    seed: int = 0,
    experience: Any = None,
    rewards: Sequence[Reward | TokenReward] = (),
) -> Evaluation:
    """Sample `samples` episodes for each of the first `problems` problems of a split.

    The same seed draws the same random numbers for every policy, so before and after are compared on equal terms; more
    problems or samples leave those that there were as they are.

    Args:
        experience: how completions come about (an `etude.experience.groups.Groups`); temperature 1 by default.
        rewards: parts that score, where the task's own environment does not.
    """
    from etude.experience.groups import Groups
    from etude.experience.rollout import fresh, rollout
    from etude.experience.rows import to_batch
    from etude.rewards.scoring import score

    how = experience or Groups()
    pool = task.problems(split)
    chosen = [pool[i] for i in range(min(problems, len(pool)))]
    stream = Stream(seed).split("evaluation", split)
    context = Context(task, policy, stream, max_tokens=how.max_tokens or task.max_tokens)
    starts = fresh(chosen, samples, stream)
    played: list[Episode] = []
    for place in range(0, len(starts), BATCH):
        episodes = rollout(starts[place : place + BATCH], context, how.sampling(context))
        if rewards:
            score(to_batch(episodes, policy.tokenizer.pad_token_id, 1.0, policy.device), rewards, context)
        played += episodes
    grouped = [played[i : i + samples] for i in range(0, len(played), samples)]
    return Evaluation(
        split,
        np.array([[task.success(e) for e in g] for g in grouped]),
        np.array([[e.total if rewards else e.reward for e in g] for g in grouped]),
        grouped,
        [[task.answer(e.completion) for e in g] for g in grouped],
    )


def evaluation_splits(task: LanguageTask) -> list[str]:
    """The splits that are looked at before and after training: those that are not trained on."""
    named = [s for s in ("test", "validation", "heldout") if s in task.splits()]
    return named or [task.splits()[0]]
