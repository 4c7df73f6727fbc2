"""Chain maze, large: 9 x 12 cells, with the goal a long way round, for a chain of points that turns slowly.

The chain is in `_chainmaze.py`, layouts and goals in `_pointmaze.py`.
"""

from __future__ import annotations

from typing import ClassVar

from etude.tasks.control._chainmaze import ChainMaze
from etude.tasks.control._pointmaze import Layout


class ChainMazeLarge(ChainMaze):
    """Nineteen cells from the start to the goal, 1,500 steps.

    Shapes: observations [M, E, 10], with `goals=drawn` [M, E, 12]; actions [M, E, 2], what two legs push.

    >>> ChainMazeLarge().make(seeds=[0, 1], count=3).reset().shape
    (2, 3, 10)
    """

    id: ClassVar[str] = "chainmaze-large"
    layout: ClassVar[Layout] = "large"


chainmaze_large = ChainMazeLarge()
