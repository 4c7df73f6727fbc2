"""Point maze, large: 9 x 12 cells, with the goal a long way round.

The layout, the dynamics and the goals are in `_pointmaze.py`.
"""

from __future__ import annotations

from typing import ClassVar

from etude.tasks.control._pointmaze import Layout, PointMaze


class PointMazeLarge(PointMaze):
    """Nineteen cells from the start to the goal, 500 steps.

    Shapes: observations [M, E, 4], place from the middle of the maze in cells and velocity in cells/s, with
    `goals=drawn` [M, E, 6], the goal too; actions [M, E, 2].

    >>> PointMazeLarge().make(seeds=[0, 1], count=3).reset().shape
    (2, 3, 4)
    """

    id: ClassVar[str] = "pointmaze-large"
    layout: ClassVar[Layout] = "large"


pointmaze_large = PointMazeLarge()
