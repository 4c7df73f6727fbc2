"""Chain maze, the U: a chain of points that turns slowly crawls round a wall, to the other end of a bent corridor.

The chain is in `_chainmaze.py`, layouts and goals in `_pointmaze.py`.
"""

from __future__ import annotations

from typing import ClassVar

from etude.tasks.control._chainmaze import ChainMaze
from etude.tasks.control._pointmaze import Layout


class ChainMazeU(ChainMaze):
    """Six cells from the start to the goal, 500 steps.

    Shapes: observations [M, E, 10], with `goals=drawn` [M, E, 12]; actions [M, E, 2], what two legs push.

    >>> ChainMazeU().make(seeds=[0, 1], count=3).reset().shape
    (2, 3, 10)
    """

    id: ClassVar[str] = "chainmaze-umaze"
    layout: ClassVar[Layout] = "umaze"


chainmaze_umaze = ChainMazeU()
