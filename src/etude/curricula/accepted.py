"""Problems that were accepted, until they are too old."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.random import Generator

from etude.core.episodes import Episode, Problem
from etude.core.fields import Count
from etude.core.kept import Kept
from etude.core.part import Part


class AcceptedProblems(Part):
    """Accepted problems of earlier steps, each until its shelf life is over; what is drawn stays.

    Args:
        emptied: every so many steps of the run all leave together; None: never.
        age: after so many steps each leaves; None: never.
        limit: how many there are at most, the oldest leave; None: no limit.

    >>> pool = AcceptedProblems(emptied=10).bind()
    >>> for step in (8, 9):
    ...     pool.at(step)
    ...     pool.put([Problem(f"{step}", "?")])
    >>> len(pool), pool.at(10), len(pool)
    (2, None, 0)
    """

    slot = "pool"
    emptied: Count | None = None
    age: Count | None = None
    limit: Count | None = None

    def initial_state(self) -> dict[str, Any]:
        return Kept.empty()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def now(self) -> int:
        """The step that it was last told of."""
        return int(self.state["now"])

    @property
    def _kept(self) -> Kept:
        return Kept(self.state, "oldest", self.limit, age=self.age)

    def at(self, step: int) -> None:
        """It is this step now: what is over leaves."""
        if self.emptied is not None and step // self.emptied != self.now // self.emptied:
            self._kept.clear()
        self._kept.at(step)

    def put(self, problems: Sequence[Problem]) -> None:
        """Keep these from now on."""
        self._kept.put([Episode(problem) for problem in problems])

    def drawn(self, count: int, random: Generator) -> list[Problem]:
        """So many at random, none twice; all in a random order where there are not enough."""
        return [episode.problem for episode in self._kept.drawn(count, random)]

    def has(self, problem: Problem) -> bool:
        """Whether it has one of this id."""
        return bool(self._kept.of(problem.id))
