"""Completions sampled from the policy, several for each problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from etude.core.episodes import Episode, Problem
from etude.core.fields import Count, Ge, PositiveProbability, WholeNumber
from etude.core.slots import Context, TokenExperience
from etude.core.worlds import World
from etude.experience.rollout import fresh, rollout
from etude.experience.views import FullHistory, View, unused
from etude.policies.sampling import Sampling

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.core.task import Task


class Groups(TokenExperience):
    """`size` independent episodes for each problem.

    Args:
        temperature: logits are divided by it, in sampling and in training alike.
        top_p, top_k: a truncated distribution; refused together with parts that take its log-probabilities for the
            policy's own, like importance ratios.
        max_tokens: limit of one completion; None takes the task's.
        view: what is seen of an episode before each turn.

    >>> Groups(size=8).rows_per_problem, Groups(top_p=0.9).truncates_distribution
    (8, True)
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE, World.ENUMERABLE})
    size: Count = 8
    temperature: Annotated[float, Ge(0.01)] = 1.0
    top_p: PositiveProbability = 1.0
    top_k: WholeNumber = 0
    max_tokens: Count | None = None
    view: View = FullHistory()

    def objection(self, method: Method) -> str | None:
        if not self.view.whole and type(self).collect is not Groups.collect:
            return "goes on from inside of episodes, which it has to see whole: set experience.view=full-history."
        user = method.behaviour_user()
        if self.truncates_distribution and user is not None:
            return (
                f"samples from a truncated distribution (top_p={self.top_p}, top_k={self.top_k}), and "
                f"{type(user).__name__} takes behaviour_logp for the policy's own log-probabilities, so it would be "
                "biased: set top_p to 1 and top_k to 0."
            )
        return None

    def lacks(self, task: Task) -> str | None:
        return unused(self.view, task) or super().lacks(task)

    @property
    def rows_per_problem(self) -> int:
        return self.size

    @property
    def truncates_distribution(self) -> bool:
        return self.top_p < 1 or self.top_k > 0

    def sampling(self, context: Context) -> Sampling:
        """How tokens are drawn."""
        limit, tilt = self.max_tokens or context.max_tokens, getattr(context.policy, "tilt", None)
        return Sampling(
            self.temperature, self.top_p, self.top_k, limit, tuple(context.task.stop), "entropy" in context.record,
            "hidden" in context.record, tilt=tilt, tilts=tilt is not None,
        )  # fmt: skip

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        return rollout(fresh(problems, self.size, context.stream), context, self.sampling(context), self.view)
