"""The policy's own completions and worked answers side by side."""

from __future__ import annotations

from collections.abc import Sequence

from etude.core.episodes import Episode, Problem
from etude.core.slots import Context
from etude.core.task import Task
from etude.experience.data import Demonstrations
from etude.experience.groups import Groups


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
