"""A run of recipes that measures how often a policy solves problems, for curricula of later runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from etude.core.episodes import Problem
from etude.core.fields import Count, Positive
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.rollout import Start, rollout
from etude.policies.sampling import Sampling
from etude.stages.chain import DeriveByPolicy

if TYPE_CHECKING:
    from etude.core.task import LanguageTask
    from etude.policies.language import LanguagePolicy


class Rates(DeriveByPolicy):
    """How often the policy that it begins from solves each problem: rows of `id`, `prompt` and `rate`.

    `curriculum=of-difficulty` with `curriculum.rates={NAME}` chooses by them.

    Args:
        samples: solutions to each problem, of which the rate is the share that is right.
        temperature: of these.

    >>> Rates(called="rates").samples
    8
    """

    samples: Count = 8
    temperature: Positive = 1.0

    def rows_by(
        self, problems: Sequence[Problem], task: LanguageTask, policy: LanguagePolicy, seed: int
    ) -> list[dict[str, Any]]:
        stream = Stream(seed).split("rates")
        context = Context(task, policy, stream, max_tokens=task.max_tokens)
        starts = [
            Start(problem, place, stream.draw("rate", problem.id).child("solution", k))
            for place, problem in enumerate(problems)
            for k in range(self.samples)
        ]
        how = Sampling(self.temperature, 1.0, 0, task.max_tokens, tuple(task.stop))
        solved = [0] * len(problems)
        for episode in rollout(starts, context, how):
            solved[episode.group] += task.success(episode)
        return [
            {"id": p.id, "prompt": p.prompt, "rate": n / self.samples} for p, n in zip(problems, solved, strict=True)
        ]
