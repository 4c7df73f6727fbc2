"""Every problem equally often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.core.episodes import Problem
from etude.core.slots import Curriculum
from etude.core.streams import Stream


class Uniform(Curriculum):
    """Passes over the pool in a fresh random order each time, so that no problem repeats before all were seen.

    >>> pool = [Problem("0", "1+1="), Problem("1", "1+2="), Problem("2", "1+3=")]
    >>> sorted(p.id for p in Uniform().bind().choose(pool, 6, Stream(0)))
    ['0', '0', '1', '1', '2', '2']
    """

    def initial_state(self) -> dict[str, Any]:
        return {"drawn": 0}

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        drawn = self.state["drawn"]
        self.state["drawn"] = drawn + count
        return [pool[self._index(drawn + i, len(pool), stream)] for i in range(count)]

    def _index(self, n: int, size: int, stream: Stream) -> int:
        """Place n of the endless sequence of shuffled passes, without storing any pass.

        An affine map i -> (a i + b) mod size with a coprime to size is a permutation.
        """
        from math import gcd

        turn, place = divmod(n, size)
        random = Stream(stream.seed).split("uniform", turn).numpy
        a, b = int(random.integers(1, size + 1)), int(random.integers(size))
        while gcd(a, size) != 1:
            a += 1
        return (a * place + b) % size
