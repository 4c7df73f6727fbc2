"""A pool that is cut down to its first problems."""

from __future__ import annotations

from collections.abc import Sequence

from etude.core.episodes import Problem
from etude.core.fields import Count
from etude.core.slots import Curriculum
from etude.core.streams import Stream
from etude.curricula.uniform import Uniform


class FirstProblems(Curriculum):
    """The first `size` problems of the pool, so that each comes again soon, in the order of another curriculum.

    `curriculum=recorded curriculum.of=first-problems` records what each of them is worth, pass by pass.

    Args:
        size: how many; a pool of fewer is taken whole.
        of: which of them come next.

    >>> pool = [Problem(str(n), "?") for n in range(9)]
    >>> sorted(p.id for p in FirstProblems(size=2).bind().choose(pool, 4, Stream(0)))
    ['0', '0', '1', '1']
    """

    size: Count = 64
    of: Curriculum = Uniform()

    @property
    def chooses_ahead(self) -> bool:  # type: ignore[override]  # a constant elsewhere, here the other's
        """Whether the other does."""
        return self.of.chooses_ahead

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        if self.made.get("pool") is not pool:
            self.made.update(pool=pool, first=pool[: self.size])
        return self.of.choose(self.made["first"], count, stream)
