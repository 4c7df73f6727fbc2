"""What is said already when a problem is tried again: the first blocks of its worked answer, or some words.

The policy goes on from there, as from what it said itself. None of it is learned, and it counts towards the limit of a
completion; the prompt is the plain one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from etude.core.episodes import Episode, Segment
from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.slots import Context
from etude.core.task import Task
from etude.experience.rollout import Start
from etude.experience.shown import Shown, count_shown, tried_again, without_answers


def solution_blocks(text: str, count: int, separator: str = "") -> list[str]:
    """A text in so many blocks, one after the other, of about as many steps each; of characters without a separator.

    >>> solution_blocks("8,17,19,20,26", 4, ","), solution_blocks("8,17", 4, ","), solution_blocks("abcde", 2)
    (['8,', '17,', '19,', '20,26'], ['', '8,', '', '17'], ['ab', 'cde'])
    """
    parts = text.split(separator) if separator else [*text]
    steps = [part + separator for part in parts[:-1]] + parts[-1:]
    cuts = [number * len(steps) // count for number in range(count + 1)]
    return ["".join(steps[a:b]) for a, b in pairwise(cuts)]


def check_blocks(where: str, shown: Sequence[int], blocks: int) -> None:
    """Raise ConfigError unless it is said how many of so many blocks are shown."""
    if not shown or max(shown) > blocks:
        raise ConfigError(
            f"{where}.shown must say how many of {blocks} blocks are shown, as in 1,2; got {tuple(shown)}."
        )


def said(text: str, context: Context) -> Segment:
    """The beginning of a turn, of which nothing is learned."""
    tokens = context.policy.encode(text) if text else []
    return Segment("assistant", text, tokens, [0] * len(tokens), [0.0] * len(tokens))


class SolutionSaid(Shown):
    """The first blocks of the worked answer are said already: more and more while a problem is chosen (SparkleRL).

    Args:
        blocks: into how many a worked answer is cut. shown: how many of them are said, one number for each stage.
        separator: text that ends a step, so that no block ends inside of one; empty: blocks of characters.

    Problems without a worked answer are not tried again.

    >>> SolutionSaid(shown=(1, 3)).stages, SolutionSaid(separator=",").text("8,17,19,20,26", 2)
    (2, '8,17,')
    """

    blocks: Count = 4
    shown: tuple[Count, ...] = (1, 2, 3)
    separator: str = ""

    def check(self) -> None:
        check_blocks("SolutionSaid", self.shown, self.blocks)

    def lacks(self, task: Task) -> str | None:
        return without_answers(task)

    @property
    def stages(self) -> int:
        return len(self.shown)

    def text(self, answer: str, count: int) -> str:
        """The first so many blocks of an answer."""
        return "".join(solution_blocks(answer, self.blocks, self.separator)[:count])

    def starts(self, attempts: Sequence[Episode], stage: int, context: Context) -> list[Start | None]:
        answers = [context.task.demonstration(e.problem) for e in attempts]
        texts = [None if a is None else self.text(a, self.shown[stage]) for a in answers]
        count_shown({e.group: t for e, t in zip(attempts, texts) if t is not None}.values(), context)
        return [None if t is None else _on(e, t, stage, context) for e, t in zip(attempts, texts)]


class WordsSaid(Shown):
    """A beginning that the policy did not choose is said for it: a forced first token, a mode, an invitation to think.

    Args:
        text: what is said.

    >>> WordsSaid(text="<think>").stages
    1
    """

    text: str = "<think>"

    def check(self) -> None:
        if not self.text:
            raise ConfigError("WordsSaid.text must be what a new attempt begins with, got ''.")

    def starts(self, attempts: Sequence[Episode], stage: int, context: Context) -> list[Start | None]:
        return [_on(e, self.text, stage, context) for e in attempts]


def _on(attempt: Episode, text: str, stage: int, context: Context) -> Start:
    """Where a new attempt begins that has said this already."""
    start, begun = tried_again(attempt, attempt.problem.prompt, stage), said(text, context)
    return start._replace(segments=(begun,), open=True) if begun.tokens else start
