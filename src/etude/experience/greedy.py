"""Completions, and what the likeliest one is worth."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from etude.advantages.segments import SampledValues
from etude.core.episodes import Episode, Problem, StopReason
from etude.core.slots import Context, GroupReward
from etude.experience.groups import Groups
from etude.experience.rollout import fresh, rollout

if TYPE_CHECKING:
    from etude.core.method import Method


class GroupsAndGreedy(Groups):
    """`size` completions of each problem, and beside them the greedy one, which says what the prompt is worth.

    It is rewarded like all others, and then leaves: nothing is learned from it, and no statistic counts it. What it is
    paid is `batch.sampled_values` at a completion's first token; nothing that was sampled is in it. The completions are
    those of `Groups`, number for number.

    `greedy_tokens` in the metrics: tokens of the greedy ones, of `sampled_tokens`.

    >>> GroupsAndGreedy(size=1).rows_per_problem
    1
    """

    probes: ClassVar[bool] = True

    def objection(self, method: Method) -> str | None:
        if not any(isinstance(part, SampledValues) for part in method.parts().values()):
            return "says what prompts are worth, and nothing reads that: set advantages=segment-advantage."
        for part in method.slots().get("rewards", ()):
            if isinstance(part, GroupReward):
                return (
                    f"scores single completions, and {type(part).__name__} compares those of a problem: leave it out."
                )
        return super().objection(method)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        sampled, how = super().collect(problems, context), self.sampling(context)
        likeliest = dataclasses.replace(how, temperature=0.0, top_p=1.0, top_k=0)
        greedy = rollout(fresh(problems, 1, context.stream), context, likeliest, self.view)
        for episode in greedy:
            episode.info["prefix"] = episode.group
        for episode in sampled:
            if episode.stop is not StopReason.FAULT and episode.action_count:
                acted = [m for s in episode.segments for m in s.action_mask]
                episode.info["prefixes"] = [[acted.index(1), episode.group]]
        context.policy.work["greedy_tokens"] += sum(e.action_count for e in greedy)
        return sampled + greedy
