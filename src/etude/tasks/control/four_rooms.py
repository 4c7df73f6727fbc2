"""Four rooms, built in: walk to a goal; only arriving is rewarded (Sutton, Precup and Singh, 1999).

The plan and the moves are those of "Between MDPs and semi-MDPs" (doi:10.1016/S0004-3702(99)00052-1, figure 2): 104
cells, four moves that go wrong by chance, walls that keep one where one is. Start and goal are other cells in every
episode, and what is seen says both, so near goals are found first and far ones later or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from gymnasium import spaces

from etude.core.control import ControlTask, VectorEnvironment
from etude.core.fields import Count, Probability
from etude.tasks.control._batched import ArrayEnvironment

PLAN = (
    "#############",
    "#.....#.....#",
    "#.....#.....#",
    "#...........#",
    "#.....#.....#",
    "#.....#.....#",
    "##.####.....#",
    "#.....###.###",
    "#.....#.....#",
    "#.....#.....#",
    "#...........#",
    "#.....#.....#",
    "#############",
)
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Up, right, down, left, as (rows, columns)."""
CELLS = np.array([(r, c) for r, row in enumerate(PLAN) for c, mark in enumerate(row) if mark == "."])
"""[104, 2] row and column of each cell."""
INDEX = {(int(r), int(c)): i for i, (r, c) in enumerate(CELLS)}
NEXT = np.array([[INDEX.get((r + y, c + x), i) for y, x in MOVES] for i, (r, c) in enumerate(CELLS)])
"""[104, 4] the cell that a move leads to; before a wall the same one."""
PLACES = ((CELLS - 6) / 5).astype(np.float32)
"""[104, 2] row and column from -1 to 1."""
WALLS = (np.arange(len(CELLS))[:, None] == NEXT).astype(np.float32)
"""[104, 4] 1 where a wall is in the way of a move."""


class FourRoomsArrays(ArrayEnvironment):
    """States [M, E, 2]: the cell where one is, the cell of the goal."""

    draws, limit = 2, 50
    slip = 1 / 3
    observation_space, action_space = spaces.Box(-1.0, 1.0, (8,)), spaces.Discrete(len(MOVES))

    def start(self, uniform: np.ndarray) -> np.ndarray:
        here = (uniform[..., 0] * len(CELLS)).astype(np.int64)
        away = 1 + (uniform[..., 1] * (len(CELLS) - 1)).astype(np.int64)
        return np.stack([here, (here + away) % len(CELLS)], -1)

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        goal, move, luck = states[..., 1], actions[..., 0].astype(np.int64), self.luck(2)
        other = (move + 1 + (luck[..., 1] * (len(MOVES) - 1)).astype(np.int64)) % len(MOVES)
        there = NEXT[states[..., 0], np.where(luck[..., 0] < self.slip, other, move)]
        arrived = there == goal
        return np.stack([there, goal], -1), arrived.astype(np.float32), arrived

    def observe(self, states: np.ndarray) -> np.ndarray:
        here, goal = states[..., 0], states[..., 1]
        return np.concatenate([PLACES[here], PLACES[goal], WALLS[here]], -1)


class FourRooms(ControlTask):
    """1 for arriving within the limit, 0 otherwise: the mean return is the share of episodes that arrive.

    Args:
        limit: steps after which an episode is truncated.
        slip: chance that a move goes in one of the three other directions, each as likely.

    Shapes: observations [M, E, 8], row and column of where one is and of the goal, from -1 to 1, and whether there is a
    wall above, to the right, below and to the left; one of four actions, in that order.

    >>> FourRooms().make(seeds=[0, 1], count=3).reset().shape
    (2, 3, 8)
    """

    id: ClassVar[str] = "four-rooms"
    steps: ClassVar[int] = 200_000
    limit: Count = 50
    slip: Probability = 1 / 3

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        made = FourRoomsArrays(seeds, count, purpose)
        made.limit, made.slip = self.limit, self.slip
        return made


four_rooms = FourRooms()
