"""Completions sampled from the policy, several for each problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from etude.core.batches import Episode, Problem
from etude.core.fields import Count, Ge, PositiveProbability, WholeNumber
from etude.core.slots import Context, Experience
from etude.experience.rollout import fresh, rollout
from etude.policies.sampling import Sampling


class Groups(Experience):
    """`size` independent episodes for each problem.

    Args:
        temperature: logits are divided by it, in sampling and in training alike.
        top_p, top_k: truncate the distribution; refused together with objectives that form importance ratios.
        max_tokens: limit of one completion; None takes the task's.
    """

    size: Count = 8
    temperature: Annotated[float, Ge(0.01)] = 1.0
    top_p: PositiveProbability = 1.0
    top_k: WholeNumber = 0
    max_tokens: Count | None = None

    def objection(self, method: object) -> str | None:
        objective = getattr(method, "objective", None)
        if self.truncates and getattr(objective, "uses_behaviour", False):
            return (
                f"truncates sampling (top_p={self.top_p}, top_k={self.top_k}), so {type(objective).__name__}'s ratio "
                "exp(logp - behaviour_logp) would be biased: set top_p to 1 and top_k to 0."
            )
        return None

    @property
    def truncates(self) -> bool:
        """Whether behaviour log-probabilities belong to a truncated distribution, not to the policy's own."""
        return self.top_p < 1 or self.top_k > 0

    def sampling(self, context: Context) -> Sampling:
        """How tokens are drawn."""
        limit = self.max_tokens or context.max_tokens
        wanted = context.extras.get("record", ())
        return Sampling(
            self.temperature, self.top_p, self.top_k, limit, tuple(context.task.stop), "entropy" in wanted,
            "hidden" in wanted,
        )  # fmt: skip

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        return rollout(fresh(problems, self.size, context.stream), context, self.sampling(context))
