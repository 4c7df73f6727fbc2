"""What hints are worth: one by one, and against writing without any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode
from etude.core.errors import ConfigError
from etude.core.fields import NonNegative
from etude.core.slots import Context, Reward, TokenReward
from etude.core.task import Task
from etude.core.worlds import World


class KeywordReward(TokenReward):
    """`hit` where a keyword is closed that the reference has, `miss` where it is empty, avoided, repeated or absent.

    It is paid on the token that closes the keyword. A keyword is repeated that stands in what was said before it, and
    is in the reference that stands in it, as letters in letters. The reference is `problem.info["reference"]`.

    Args:
        separator: what closes a keyword.
        avoided: keywords that mean nothing, whatever the reference has.

    Shapes: [B, T], 0 outside the action mask.

    >>> KeywordReward().paid(["cat", ";", "dog", " ;", "cat", ";", ";", "end"], "The cat sat.")
    [0.0, 1.0, 0.0, -0.2, 0.0, -0.2, -0.2, 0.0]
    """

    judges: ClassVar[bool] = False
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    hit: float = 1.0
    miss: float = -0.2
    separator: str = ";"
    avoided: tuple[str, ...] = ()

    def check(self) -> None:
        if not self.separator:
            raise ConfigError("KeywordReward.separator must be what closes a keyword, got ''.")

    def shape_in(self, batch: TokenBatch, context: Context) -> Tensor:
        paid, tokenizer = torch.zeros_like(batch.rewards), context.policy.tokenizer
        for row, episode in enumerate(batch.episodes):
            places = batch.action_mask[row].nonzero()[:, 0]
            texts = [str(tokenizer.decode([i])) for i in batch.tokens[row, places].tolist()]
            reference = str(episode.problem.info.get("reference", ""))
            paid[row, places] = paid.new_tensor(self.paid(texts, reference))
        return paid

    def paid(self, texts: Sequence[str], reference: str) -> list[float]:
        """What each of a completion's tokens is paid, by their texts."""
        found, said = list[float](), ""
        for text in texts:
            before = said.count(self.separator)
            said += text
            closed = said.lower().split(self.separator)[:-1]
            found.append(sum((self._worth(closed, n, reference.lower()) for n in range(before, len(closed))), 0.0))
        return found

    def _worth(self, closed: Sequence[str], place: int, reference: str) -> float:
        """Of the keyword at a place among those that were closed so far."""
        keyword, earlier = closed[place].strip(), self.separator.join(closed[:place])
        wrong = not keyword or keyword in self.avoided or keyword in earlier
        return self.miss if wrong or keyword not in reference else self.hit


class HintlessBaseline(Reward):
    """-weight R, R what the task pays for saying nothing: with the task's reward an improvement over no hints.

    It depends on the problem alone, so the expected gradient keeps its direction; 10 (R with hints - R without) is
    this and `task-reward`, both with a weight of 10.

    Where saying nothing is worth 0.25:

    >>> from types import SimpleNamespace as Run
    >>> from etude.core.episodes import Episode, Problem
    >>> task = Run(expect=lambda asked: None, score=lambda problem, said: 0.25)
    >>> HintlessBaseline(weight=10.0).score([Episode(Problem("p", "?"), [])], Run(task=task))
    [-2.5]
    """

    judges: ClassVar[bool] = False
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    weight: NonNegative = 1.0

    def lacks(self, task: Task) -> str | None:
        if getattr(task, "max_turns", 1) > 1 or task.needs_reward() is not None:
            return (
                f"{type(self).__name__} holds a completion against saying nothing, which task {task.id!r} has no score "
                "for: leave it out, or take a task of one turn that scores by itself."
            )
        return None

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        problems = {e.problem.id: e.problem for e in episodes}
        context.task.expect([(problem, "") for problem in problems.values()])
        worth = {name: -self.weight * context.task.score(problem, "") for name, problem in problems.items()}
        return [worth[e.problem.id] for e in episodes]
