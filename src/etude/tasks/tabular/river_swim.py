"""RiverSwim: swimming up a river for a large reward, or drifting down for a small one (Strehl and Littman, 2008).

Going left always succeeds. Going right, one comes forward with 0.35, stays with 0.6 and is swept back with 0.05; at the
left bank forward 0.6, else stays; at the right bank one stays with 0.6, else swept back. Left at the left bank pays
0.005, right at the right bank 1. These are the chances of arXiv:1306.0940, figure 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from etude.core.fields import Count
from etude.tasks.tabular.control import TabularTask, at_least, state
from etude.tasks.tabular.finite import FiniteMDP, same


class RiverSwim(TabularTask):
    """Who only drifts earns 0.005 a step.

    Args:
        states: from bank to bank.
        limit: steps after which an episode is truncated; it begins at the left bank.

    Raises: ConfigError for fewer than two states.

    Shapes: observations [M, E, S], one-hot; one of two actions, left and right.

    >>> RiverSwim().tables([0]).transitions[0, 2, 1].tolist()
    [0.0, 0.05, 0.6, 0.35, 0.0, 0.0]
    """

    id: ClassVar[str] = "river-swim"
    steps: ClassVar[int] = 20_000
    states: Count = 6
    limit: Count = 20

    def check(self) -> None:
        at_least(self, self.states, 2)

    def length(self) -> int:
        return self.limit

    def tables(self, seeds: Sequence[int]) -> FiniteMDP:
        n = self.states
        moves, rewards = torch.zeros(n, 2, n, dtype=torch.float64), torch.zeros(n, 2, dtype=torch.float64)
        for s in range(n):
            moves[s, 0, max(0, s - 1)] = 1.0
            back, forward = (0.0, 0.6) if s == 0 else (0.4, 0.0) if s == n - 1 else (0.05, 0.35)
            moves[s, 1, max(0, s - 1)] += back
            moves[s, 1, min(n - 1, s + 1)] += forward
            moves[s, 1, s] = 1 - back - forward
        rewards[0, 0], rewards[-1, 1] = 0.005, 1.0
        return same(moves, rewards, state(0, n), len(seeds))


river_swim = RiverSwim()
