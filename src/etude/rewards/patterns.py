"""Rewards for how a completion is written, whatever it says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode
from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative
from etude.core.part import Part
from etude.core.slots import Context, Reward, TokenReward


class FormatReward(Reward):
    """`weight` for a completion that was not cut and has the form that the task reads answers from, else 0.

    Args:
        pattern: a regular expression that the whole completion must match; empty: the task finds an answer in it.

    Raises: ConfigError if `pattern` is no regular expression.

    >>> from etude.core.episodes import Problem, Segment
    >>> said = [Episode(Problem("sum/1", "1+1="), [Segment("assistant", text)]) for text in ("(2)", "2")]
    >>> FormatReward(pattern="[(].*[)]", weight=0.5).score(said, None)
    [0.5, 0.0]
    """

    judges: ClassVar[bool] = False
    pattern: str = ""
    weight: NonNegative = 1.0

    def check(self) -> None:
        _checked(self, self.pattern)

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [self.weight * formed(e, self.pattern, context) for e in episodes]


class ThinkFormat(FormatReward):
    """`weight` for a completion that thinks between one pair of tags and answers behind it, and was not cut, else 0.

    The form of DeepSeek-R1's completions (arXiv:2501.12948). Raises: ConfigError if `pattern` is no regular expression.

    >>> from etude.core.episodes import Problem, Segment
    >>> texts = ("<think>1 and 1</think>2", "2", "<think>1 and 1</think>", "<think><think></think>2")
    >>> said = [Episode(Problem("sum/1", "1+1="), [Segment("assistant", text)]) for text in texts]
    >>> ThinkFormat().score(said, None)
    [1.0, 0.0, 0.0, 0.0]
    """

    pattern: str = r"<think>(?!.*<think>).*?</think>(?!.*</think>).*\S.*"


class GradedReward(Reward):
    """`right` for a success, `malformed` for one that has not the form of an answer, `wrong` for all else.

    Args:
        unformed: for what is no success and has not the form of an answer; None: `wrong`.
        pattern: as of `FormatReward`.

    Raises: ConfigError if `pattern` is no regular expression.

    >>> from types import SimpleNamespace as Run
    >>> from etude.core.episodes import Problem, Segment
    >>> said = [Episode(Problem("sum/1", "1+1="), [Segment("assistant", text)]) for text in ("(2)", "2", "3")]
    >>> run = Run(task=Run(success=lambda episode: "2" in episode.completion))
    >>> GradedReward(right=2.0, malformed=1.0, wrong=-1.0, pattern="[(].*[)]").score(said, run)
    [2.0, 1.0, -1.0]
    """

    right: float = 1.0
    malformed: float = 1.0
    wrong: float = -1.0
    unformed: float | None = None
    pattern: str = ""

    def check(self) -> None:
        _checked(self, self.pattern)

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [self._grade(e, context) for e in episodes]

    def _grade(self, episode: Episode, context: Context) -> float:
        of_form = formed(episode, self.pattern, context)
        if context.task.success(episode):
            return self.right if of_form else self.malformed
        return self.wrong if of_form or self.unformed is None else self.unformed


class FormatGate(TokenReward):
    """Takes away what the parts before it paid for a completion that was cut, or that has not the form of an answer.

    r <- r f, with f as in `FormatReward`. Shapes: rewards [B, T] -> [B, T].

    Args:
        pattern: as of `FormatReward`.

    Raises: ConfigError if `pattern` is no regular expression.

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> from etude.core.episodes import Problem, Segment
    >>> said = [Episode(Problem("sum/1", "1+1="), [Segment("assistant", text)]) for text in ("(2)", "2")]
    >>> rows = Rows(rewards=torch.tensor([[0.0, 1.0], [0.0, 0.5]]), episodes=said)
    >>> (rows.rewards + FormatGate(pattern="[(].*[)]").shape_in(rows, None)).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """

    judges: ClassVar[bool] = False
    pattern: str = ""

    def check(self) -> None:
        _checked(self, self.pattern)

    def shape_in(self, batch: TokenBatch, context: Context) -> Tensor:
        kept = batch.rewards.new_tensor([formed(e.whole, self.pattern, context) for e in batch.episodes])
        return (kept - 1)[:, None] * batch.rewards


def formed(episode: Episode, pattern: str, context: Context) -> bool:
    """Whether a completion was not cut and matches `pattern`; without one, whether the task finds an answer in it."""
    if episode.stop.cut:
        return False
    if pattern:
        return re.fullmatch(pattern, episode.completion, re.DOTALL) is not None
    return bool(context.task.answer(episode.completion).strip())


def _checked(part: Part, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"{type(part).__name__}.pattern must be a regular expression, got {pattern!r}: {error}."
        ) from None


class RepetitionPenalty(Reward):
    """-weight * (1 - distinct / all) of the sampled n-grams of tokens; 0 for a text shorter than one.

    Args:
        size: n.

    The bigrams of a b a b a are ab, ba, ab, ba: 2 of 4 are distinct, so it costs half of `weight`:

    >>> from etude.core.episodes import Problem, Segment
    >>> said = Segment("assistant", tokens=[1, 2, 1, 2, 1], action_mask=[1] * 5)
    >>> RepetitionPenalty(size=2).score([Episode(Problem("sum/1", "1+1="), [said])], None)
    [-0.5]

    Reference: arXiv:2502.03373, section 4; an option of arXiv:2503.16219.
    """

    judges: ClassVar[bool] = False
    size: Count = 3
    weight: NonNegative = 1.0

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [-self.weight * repetition(sampled(e), self.size) for e in episodes]


def sampled(episode: Episode) -> list[int]:
    """The tokens that the policy said, in order."""
    return [t for s in episode.segments for t, mine in zip(s.tokens, s.action_mask) if mine]


def repetition(tokens: Sequence[int], size: int) -> float:
    """Share of the n-grams of `size` tokens that occurred before; 0 if there are none.

    >>> repetition([1, 2, 1, 2, 1], 2)
    0.5
    """
    count = len(tokens) - size + 1
    if count < 1:
        return 0.0
    return 1 - len(set(zip(*(tokens[i:] for i in range(size))))) / count
