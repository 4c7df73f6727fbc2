"""Chain maze, medium: 8 x 8 cells, two ways to the goal and dead ends, for a chain of points that turns slowly.

The chain is in `_chainmaze.py`, layouts and goals in `_pointmaze.py`.
"""

from __future__ import annotations

from typing import ClassVar

from etude.tasks.control._chainmaze import ChainMaze
from etude.tasks.control._pointmaze import Layout


class ChainMazeMedium(ChainMaze):
    """Ten cells from the start to the goal, 800 steps.

    Shapes: observations [M, E, 10], with `goals=drawn` [M, E, 12]; actions [M, E, 2], what two legs push.

    >>> ChainMazeMedium().make(seeds=[0, 1], count=3).reset().shape
    (2, 3, 10)
    """

    id: ClassVar[str] = "chainmaze-medium"
    layout: ClassVar[Layout] = "medium"


chainmaze_medium = ChainMazeMedium()
