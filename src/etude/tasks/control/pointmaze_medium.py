"""Point maze, medium: 8 x 8 cells, two ways to the goal and dead ends.

The layout, the dynamics and the goals are in `_pointmaze.py`.
"""

from __future__ import annotations

from typing import ClassVar

from etude.tasks.control._pointmaze import Layout, PointMaze


class PointMazeMedium(PointMaze):
    """Ten cells from the start to the goal, 300 steps.

    Shapes: observations [M, E, 4], place from the middle of the maze in cells and velocity in cells/s, with
    `goals=drawn` [M, E, 6], the goal too; actions [M, E, 2].

    >>> PointMazeMedium().make(seeds=[0, 1], count=3).reset().shape
    (2, 3, 4)
    """

    id: ClassVar[str] = "pointmaze-medium"
    layout: ClassVar[Layout] = "medium"


pointmaze_medium = PointMazeMedium()
