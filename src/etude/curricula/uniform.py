"""Every problem equally often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from etude.core.episodes import Problem
from etude.core.pools import Streamed, shuffled
from etude.core.slots import Curriculum
from etude.core.streams import Stream


class Uniform(Curriculum):
    """Passes over the pool in a fresh random order each time, so that no problem repeats before all were seen.

    >>> pool = [Problem("0", "1+1="), Problem("1", "1+2="), Problem("2", "1+3=")]
    >>> sorted(p.id for p in Uniform().bind().choose(pool, 6, Stream(0)))
    ['0', '0', '1', '1', '2', '2']
    """

    chooses_ahead: ClassVar[bool] = True

    def initial_state(self) -> dict[str, Any]:
        return {"drawn": 0}

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        drawn = self.state["drawn"]
        self.state["drawn"] = drawn + count
        order = Stream(stream.seed).split("uniform")
        return [pool[self._index(drawn + i, pool, order)] for i in range(count)]

    def _index(self, n: int, pool: Sequence[Problem], order: Stream) -> int:
        """Place n of the endless sequence of shuffled passes."""
        return pool.shuffled(n, order) if isinstance(pool, Streamed) else shuffled(n, len(pool), order)
