"""Every step as many problems of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.core.episodes import Problem
from etude.core.fields import Count
from etude.core.pools import shuffled
from etude.core.slots import Curriculum
from etude.core.streams import Stream


class BalancedLevels(Curriculum):
    """As many problems of each level (`Problem.level`: a task, a source) in every step (arXiv:2512.12967).

    Levels take turns, so that where their number does not divide a step's problems they are even over steps. Each
    passes over its own problems in a fresh random order each time.

    Args:
        size: how many of the pool's problems are drawn from.

    >>> pool = [Problem(f"{level}{i}", "?", level=level) for i in range(9) for level in ("a", "a", "a", "b")]
    >>> part = BalancedLevels().bind()
    >>> [[p.level for p in part.choose(pool, 3, Stream(0))] for _ in range(2)]
    [['a', 'b', 'a'], ['b', 'a', 'b']]
    """

    size: Count = 2000

    def initial_state(self) -> dict[str, Any]:
        return {"drawn": 0}

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        levels, begun = self._levels(pool), self.state["drawn"]
        self.state["drawn"] = begun + count
        order, names = Stream(stream.seed).split("balanced"), sorted(levels)
        chosen = []
        for turn in range(begun, begun + count):
            name = names[turn % len(names)]
            own = levels[name]
            chosen.append(own[shuffled(turn // len(names), len(own), order.split(name))])
        return chosen

    def _levels(self, pool: Sequence[Problem]) -> dict[str, list[Problem]]:
        """The problems that are drawn from by their level, read once."""
        if self.made.get("pool") is not pool:
            found: dict[str, list[Problem]] = {}
            for problem in (pool[i] for i in range(min(self.size, len(pool)))):
                found.setdefault(problem.level, []).append(problem)
            self.made.update(pool=pool, levels=found)
        levels: dict[str, list[Problem]] = self.made["levels"]
        return levels
