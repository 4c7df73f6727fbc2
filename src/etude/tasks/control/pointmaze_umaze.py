"""Point maze, the U: a force pushes a point round a wall, to the other end of a bent corridor.

The layout, the dynamics and the goals are in `_pointmaze.py`.
"""

from __future__ import annotations

from typing import ClassVar

from etude.tasks.control._pointmaze import Layout, PointMaze


class PointMazeU(PointMaze):
    """Six cells from the start to the goal, 150 steps.

    Shapes: observations [M, E, 4], place from the middle of the maze in cells and velocity in cells/s, with
    `goals=drawn` [M, E, 6], the goal too; actions [M, E, 2].

    >>> PointMazeU().make(seeds=[0, 1], count=3).reset().shape
    (2, 3, 4)
    """

    id: ClassVar[str] = "pointmaze-umaze"
    layout: ClassVar[Layout] = "umaze"


pointmaze_umaze = PointMazeU()
