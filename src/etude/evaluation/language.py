"""How good a language policy is: several samples for each of many problems, scored by the task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from etude.core.episodes import Episode, Problem
from etude.core.errors import RewardError
from etude.core.player_slots import Seat
from etude.core.slots import Context, Reward, TokenReward
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.evaluation.intervals import Interval
from etude.evaluation.pass_at_k import over_problems, summary

if TYPE_CHECKING:
    from etude.experience.groups import Groups
    from etude.policies.language import LanguagePolicy

T = TypeVar("T")

BATCH = 512
"""Rollouts sampled at a time."""
GREEDY = "/greedy"
"""What metrics of greedy completions are called behind their names."""


@dataclass
class Evaluation:
    """What was sampled on one split.

    Shapes: correct, rewards [problems, samples], nan where no reward applies; `episodes[i][j]` is sample j of problem
    i. `greedy`: whether completions are the likeliest token by token; metrics are then named apart.
    """

    split: str
    correct: NDArray[np.bool_]
    rewards: NDArray[np.float64]
    episodes: list[list[Episode]]
    answers: list[list[str]]
    greedy: bool = False

    def summary(self, ks: Sequence[int], majority: bool = False) -> dict[str, Interval]:
        """pass@k (and maj@k) for each k, and the mean reward, with bootstrap intervals over problems.

        The reward is the mean over those samples, and problems, that have one.
        """
        fitting = [k for k in ks if k <= self.correct.shape[1]]
        intervals = summary(self.correct, self.answers if majority else None, tuple(fitting))
        rewarded = self.rewards[~np.isnan(self.rewards).all(1)]
        if len(rewarded):
            intervals["reward"] = over_problems(np.nanmean(rewarded, 1))
        return self._named(intervals)

    def means(self, ks: Sequence[int]) -> dict[str, float]:
        """pass@k for each k that there are samples for, and the mean reward: as in `summary`, without intervals."""
        from etude.evaluation.pass_at_k import pass_at_k

        found = {f"pass@{k}": float(pass_at_k(self.correct, k).mean()) for k in ks if k <= self.correct.shape[1]}
        rewarded = self.rewards[~np.isnan(self.rewards).all(1)]
        if len(rewarded):
            found["reward"] = float(np.nanmean(rewarded, 1).mean())
        return self._named(found)

    def _named(self, found: dict[str, T]) -> dict[str, T]:
        return {f"{k}{GREEDY}": v for k, v in found.items() if not k.startswith("avg@")} if self.greedy else found


def evaluate_split(
    policy: LanguagePolicy,
    task: LanguageTask,
    split: str,
    *,
    problems: int = 100,
    samples: int = 8,
    seed: int = 0,
    experience: Groups | None = None,
    temperature: float | None = None,
    rewards: Sequence[Reward | TokenReward] = (),
    seats: Mapping[str, Seat] | None = None,
) -> Evaluation:
    """Sample `samples` episodes for each of the first `problems` problems of a split.

    The same seed draws the same random numbers for every policy, so before and after are compared on equal terms; more
    problems or samples leave those that there were as they are.

    Args:
        experience: how completions come about; temperature 1 by default.
        temperature: another one than the experience's; at 0 each problem has one completion, the greedy one.
        rewards: parts that score in place of the task's own environment. What is correct the task says all the same;
            where only rewards can tell, problems that none of them applies to are left out.
        seats: of players, with the models that they speak with; a game counts once, as its first player saw it.

    Raises: RewardError if that leaves no problem.
    """
    pool = task.problems(split)
    chosen = [pool[i] for i in range(min(problems, len(pool)))]
    return evaluate_problems(
        policy, task, chosen, split, samples=samples, seed=seed, experience=experience, temperature=temperature,
        rewards=rewards, seats=seats,
    )  # fmt: skip


def evaluate_problems(
    policy: LanguagePolicy, task: LanguageTask, chosen: Sequence[Problem], split: str, *, samples: int = 8,
    seed: int = 0, experience: Groups | None = None, temperature: float | None = None,
    rewards: Sequence[Reward | TokenReward] = (), seats: Mapping[str, Seat] | None = None,
) -> Evaluation:  # fmt: skip
    """As `evaluate_split`, of these problems; a problem's id says which random numbers it is sampled with."""
    from etude.core.rows import to_batch
    from etude.experience.groups import Groups
    from etude.experience.rollout import fresh, rollout
    from etude.rewards.scoring import score

    how, greedy = experience or Groups(), temperature == 0
    samples = 1 if greedy else samples
    stream = Stream(seed).split("evaluation", split)
    context = Context(task, policy, stream, max_tokens=how.max_tokens or task.max_tokens, seats=seats or {})
    starts = fresh(chosen, samples, stream)
    sampling = replace(how.sampling(context), tilts=False)  # nobody learns from these
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    played: list[Episode] = []
    for place in range(0, len(starts), BATCH):
        episodes = rollout(starts[place : place + BATCH], context, sampling, how.view)
        if rewards:
            names = tuple(dict.fromkeys(e.player for e in episodes))
            score(to_batch(episodes, policy.tokenizer.pad_token_id, 1.0, policy.device, names), rewards, context)
        played += episodes
    grouped = [played[i : i + samples] for i in range(0, len(played), samples)]
    if task.judged_by_reward:
        grouped = [g for g in grouped if any("dropped" not in e.info for e in g)]
    if not grouped:
        raise RewardError(
            f"No reward applies to any completion of the split {split!r}, so nothing says how good it is."
        )
    return Evaluation(
        split,
        np.array([[task.success(e) for e in g] for g in grouped]),
        np.array([[_reward(e, bool(rewards)) for e in g] for g in grouped]),
        grouped,
        [[task.answer(e.completion) for e in g] for g in grouped],
        greedy,
    )


def _reward(episode: Episode, scored: bool) -> float:
    """What rewards paid, nan if none applies; unless they scored, what the environment did."""
    if not scored:
        return episode.reward
    return math.nan if "dropped" in episode.info else episode.total


def evaluation_splits(task: LanguageTask) -> list[str]:
    """The splits that are looked at before and after training: those that are not trained on."""
    named: list[str] = [s for s in ("test", "validation", "heldout") if s in task.splits()]
    return named or [task.splits()[0]]
