"""Rows that come from data instead of from the policy: worked answers, and pairs of a better and a worse one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from etude.core.episodes import Episode, Problem, Segment, StopReason, occurrences
from etude.core.errors import DataError
from etude.core.slots import Context, TokenExperience
from etude.core.streams import Stream
from etude.core.task import LanguageTask, Task, spoken
from etude.experience.looks import as_seen
from etude.experience.texts import Texts
from etude.experience.views import FullHistory, View, unused
from etude.policies.showing import shown
from etude.policies.written import written


class Demonstrations(TokenExperience):
    """The task's worked answer to each problem; its tokens and the end token are learned.

    Args:
        view: what is seen of an answer of several turns before each of them. Whoever will play in a view learns in it.

    A task shows how it is done with `demonstration(problem) -> str`, or, over several turns, with
    `script(problem, stream) -> list[Segment]`. Nothing was sampled, so `behaviour_logp` is 0.

    Raises: DataError for a problem that has neither.

    >>> from etude.core.task import LanguageTask
    >>> worked = Problem("sum/1", "1+1=", info={"demonstration": "2"})
    >>> Demonstrations().rows_per_problem, Demonstrations().missing(worked, LanguageTask())
    (1, None)
    """

    samples: ClassVar[bool] = False

    view: View = FullHistory()

    def lacks(self, task: Task) -> str | None:
        found = self.missing(task.problems("train")[0], cast(LanguageTask, task))  # asked in its own world alone
        return found or unused(self.view, task)

    def missing(self, problem: Problem, task: LanguageTask) -> str | None:
        """What the problem would have to have, as a sentence; None if nothing is missing."""
        if getattr(task, "script", None) or task.demonstration(problem) is not None:
            return None
        return (
            f"Problem {problem.id!r} of task {_name(task)} has no demonstration to learn from: give data files a "
            "'completion' column (or 'messages'), or choose a method that samples."
        )

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        episodes, texts = [], Texts(context)
        for group, (problem, number) in enumerate(zip(problems, occurrences(problems))):
            if sentence := self.missing(problem, context.task):
                raise DataError(sentence)
            segments = _shown(problem, context, context.stream.split("demonstration", problem.id, number))
            episodes.append(
                written(
                    problem, segments, group, context.policy, context.task.add_bos,
                    lambda whole: as_seen(whole, self.view, texts),
                )
            )  # fmt: skip
        return episodes


class Pairs(TokenExperience):
    """Two rows for each problem, in one group: `problem.info['chosen']`, then `problem.info['rejected']`.

    The chosen one carries the reward 1 and the rejected one 0, which is how an objective tells them apart.

    Raises: DataError for a problem that lacks one of them.

    >>> pair = Problem("sum/1", "1+1=", info={"chosen": "2", "rejected": "3"})
    >>> Pairs().rows_per_problem, Pairs().missing(pair, None)
    (2, None)
    """

    samples: ClassVar[bool] = False

    @property
    def rows_per_problem(self) -> int:
        return 2

    def lacks(self, task: Task) -> str | None:
        return self.missing(task.problems("train")[0], task)

    def missing(self, problem: Problem, task: Task) -> str | None:
        """What the problem would have to have, as a sentence; None if nothing is missing."""
        missing = [which for which in ("chosen", "rejected") if which not in problem.info]
        if not missing:
            return None
        return (
            f"Problem {problem.id!r} of task {_name(task)} has no {missing[0]!r} answer to compare: give data files "
            "the columns 'chosen' and 'rejected', or choose a task that has pairs, like 'preferences'."
        )

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        episodes = []
        for group, problem in enumerate(problems):
            if sentence := self.missing(problem, context.task):
                raise DataError(sentence)
            pair = []
            for which, reward in (("chosen", 1.0), ("rejected", 0.0)):
                answer = _answer(problem, which, str(problem.info[which]))
                answer.reward = reward
                segments = [*_opening(problem, context), answer]
                pair.append(written(problem, segments, group, context.policy, context.task.add_bos))
            complete = all(e.action_count for e in pair)
            episodes += pair if complete else [Episode(problem, group=group, stop=StopReason.CONTEXT_OVERFLOW)] * 2
        return episodes


def _shown(problem: Problem, context: Context, stream: Stream) -> list[Segment]:
    """Every segment of a demonstration."""
    task = context.task
    if script := getattr(task, "script", None):
        return shown(list(script(problem, stream)), task, context.policy)
    return [*_opening(problem, context), _answer(problem, "demonstration", str(task.demonstration(problem)))]


def _opening(problem: Problem, context: Context) -> list[Segment]:
    """What the policy would be shown, tools in reach included: the task's own environment may be what has them."""
    task = context.task
    return shown(task.played_in().reset(problem, 0), task, context.policy)


def _answer(problem: Problem, which: str, text: str) -> Segment:
    """A written answer; its message where that is more than text, as one with `tool_calls` is."""
    said = problem.info.get(f"{which}_message")
    return spoken(said) if said else Segment("assistant", text)


def _name(task: Task) -> str:
    return repr(task.id or type(task).__name__)
