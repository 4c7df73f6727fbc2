"""The policy's own completions, and answers that others wrote, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from etude.core.episodes import Episode, Problem
from etude.core.fields import Count, Ge
from etude.core.slots import Context
from etude.core.task import Task
from etude.core.worlds import World
from etude.experience.data import Demonstrations
from etude.experience.groups import Groups
from etude.experience.scored import ScoredAnswers


class GroupsAndDemonstrations(Groups):
    """`size` sampled episodes of each problem, then its worked answer, all in the problem's group.

    Worked answers are marked as written (`batch.written`): they take no part in the comparison of a group, and which
    of the two kinds of rows is learned from is for a filter to say. The samples are those of `Groups`, number for
    number.

    Raises: DataError for a problem without a worked answer.

    >>> GroupsAndDemonstrations(size=8).rows_per_problem
    9
    """

    @property
    def rows_per_problem(self) -> int:
        return self.size + 1

    def lacks(self, task: Task) -> str | None:
        return super().lacks(task) or Demonstrations().lacks(task)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        return super().collect(problems, context) + Demonstrations().collect(problems, context)


class GroupsAndScoredAnswers(Groups):
    """`size` sampled episodes of each problem, then its scored answers (`ScoredAnswers`), all in the problem's group.

    All are compared with one another: some of what is learned from is the policy's own, some of others or of before.
    The samples are those of `Groups`, number for number, and paid by the method's rewards; so are the answers, of which
    `task-reward` is the score that comes with them.

    Args:
        most: scored answers of a problem at most; of more, so many are drawn anew each time.
        behaviour: whether the data say how likely each answer was where it came from, as of `ScoredAnswers`.

    Raises: DataError as of `ScoredAnswers`.

    >>> GroupsAndScoredAnswers(size=4, most=4).rows_per_problem
    8
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})  # it reads text

    size: Count = 4
    most: Annotated[int, Ge(2)] = 4
    behaviour: bool = False

    @property
    def answers(self) -> ScoredAnswers:
        """Who makes rows of the answers."""
        return ScoredAnswers(most=self.most, behaviour=self.behaviour)

    @property
    def rows_per_problem(self) -> int:
        return self.size + self.most

    @property
    def knows_behaviour(self) -> bool:
        return self.behaviour

    def lacks(self, task: Task) -> str | None:
        return super().lacks(task) or self.answers.lacks(task)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        found = self.answers.collect(problems, context)
        for number, answer in enumerate(found):
            answer.draw = context.stream.draw("answer", number)  # for parts that draw among a problem's rows
        return super().collect(problems, context) + found
