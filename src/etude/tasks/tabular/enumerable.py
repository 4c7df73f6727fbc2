"""Enumerable: a few prompts with a few dozen responses each, so that expectations are sums and gradients exact.

    prompt      an index
    response    a path of tokens; every prefix has logits of its own

Reward 1 for the responses that solve a prompt (a few of all, how many differs between prompts), else 0; `graded`
rewards are spread over [0, 1] instead. What a method does to expected reward, pass@k and entropy is known exactly
after every step, for as many seeds as are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count, Ge, Interval, NonNegative, WholeNumber
from etude.core.task import Task
from etude.core.worlds import World
from etude.policies.tabular import SoftmaxTree

MOST = 4096
"""Responses per prompt above which enumerating is no longer cheap."""


class Enumerable(Task):
    """A softmax policy over every response to every prompt.

    Args:
        prompts: how many there are; each is visited in every training step.
        vocabulary, length: responses are paths of `length` tokens from so many.
        ends: whether token 0 ends a response, so that lengths differ.
        solutions: responses that solve a prompt: from one of them for the first prompt to so many for the last.
        graded: rewards uniform in [0, 1] instead of 0 and 1; what solves a prompt has 1.
        spread: standard deviation of the first policy's logits; the larger, the rarer some solutions.
        seed: which responses are solutions, and the first policy's logits.

    Shapes: rewards [X, Y] of X prompts and Y responses.

    >>> task = Enumerable(prompts=2, vocabulary=4, length=2, solutions=3)
    >>> task.table(4**2).sum(1).tolist()
    [1.0, 3.0]
    """

    id: ClassVar[str] = "enumerable"
    world: ClassVar[World] = World.ENUMERABLE
    together: ClassVar[bool] = True

    prompts: Count = 4
    vocabulary: Annotated[int, Ge(2)] = 4
    length: Annotated[int, Interval(ge=1, le=8)] = 2
    ends: bool = False
    solutions: Count = 2
    graded: bool = False
    spread: NonNegative = 1.0
    seed: WholeNumber = 0

    def check(self) -> None:
        if self.prompts * self.vocabulary**self.length > MOST:
            raise ConfigError(
                f"Enumerable has {self.prompts} prompts with {self.vocabulary}^{self.length} responses each; all of "
                f"them together must be at most {MOST}."
            )
        if self.solutions >= self.vocabulary**self.length:
            raise ConfigError(
                f"Enumerable.solutions must be less than the {self.vocabulary**self.length} responses, got "
                f"{self.solutions}."
            )

    def splits(self) -> tuple[str, ...]:
        return ("train",)

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of enumerable", split, self.splits())
        return [Problem(f"enumerable/{x}", str(x), level=f"solutions{self._solutions(x)}") for x in range(self.prompts)]

    def success(self, episode: Episode) -> bool:
        """Whether a response solves its prompt."""
        return episode.reward >= 1.0

    def answer(self, completion: str) -> str:
        """The whole response."""
        return completion

    def _solutions(self, prompt: int) -> int:
        return 1 + round((self.solutions - 1) * prompt / max(1, self.prompts - 1))

    def policy(self, members: int = 1) -> SoftmaxTree:
        """The first policy, the same for every member."""
        tree = SoftmaxTree(
            self.prompts, self.vocabulary, self.length, members, ends=self.ends, spread=self.spread, seed=self.seed
        )
        for k in range(1, members):
            tree.logits[k].data.copy_(tree.logits[0].data)
        return tree

    def table(self, responses: int) -> Tensor:
        """Rewards [X, Y] in float64."""
        random = torch.Generator().manual_seed(self.seed + 1)
        rewards = torch.zeros(self.prompts, responses, dtype=torch.float64)
        if self.graded:
            rewards = 0.9 * torch.rand(rewards.shape, generator=random, dtype=torch.float64)
        for x in range(self.prompts):
            rewards[x, torch.randperm(responses, generator=random)[: self._solutions(x)]] = 1.0
        return rewards


enumerable = Enumerable()
