"""A point in a maze: pushed by a force, stopped by walls, paid for arriving; and who knows the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from gymnasium import spaces

from etude.core.control import ControlTask, Step, VectorEnvironment, Ways
from etude.core.fields import Count
from etude.tasks.control._batched import ArrayEnvironment

TAU, PUSH, DRAG = 0.1, 4.0, 1.0
"""Seconds of a step; acceleration of a full push, in cells/s^2; what a second's speed loses of itself."""
FASTEST = PUSH / DRAG
"""Cells/s that no push exceeds: in a step less than a cell, so that nothing jumps over a wall."""
RADIUS, REACH, SPREAD = 0.1, 0.5, 0.3
"""Cells: half the width of the point, how near to the goal one has arrived, how far from a cell's middle one begins."""
GAP = 1e-9
"""Cells between the point and a wall that it touches."""

LAYOUTS = {
    "umaze": (
        "#####",
        "#G..#",
        "###.#",
        "#S..#",
        "#####",
    ),
    "medium": (
        "########",
        "#S..#..#",
        "#.#.#.##",
        "#.#....#",
        "#...##.#",
        "###.#..#",
        "#.....G#",
        "########",
    ),
    "large": (
        "############",
        "#S...#.....#",
        "#.##.#.###.#",
        "#..#...#...#",
        "##.#.###.#.#",
        "#....#...#.#",
        "#.##.#.###.#",
        "#.#....#..G#",
        "############",
    ),
}
"""Plans: walls are #, S is where episodes begin, G the goal."""
LIMITS = {"umaze": 150, "medium": 300, "large": 500}
"""Steps of an episode: about five times those of who knows the way."""
Layout = Literal["umaze", "medium", "large"]


class Maze(NamedTuple):
    """A layout as arrays; x runs along a row, y down the rows, in cells from the upper left corner.

    Shapes: walls [H, W] bool; middles [N, 2] of the cells that are free; numbers [H, W] which of them, -1 in walls;
    onward [N, N] the cell that follows on the shortest way from one to another; start, goal: which cell.
    """

    walls: np.ndarray
    middles: np.ndarray
    numbers: np.ndarray
    onward: np.ndarray
    start: int
    goal: int

    def cell(self, places: np.ndarray) -> np.ndarray:
        """Which cell [...] places [..., 2] are in."""
        at = np.floor(places).astype(np.int64)
        found: np.ndarray = self.numbers[at[..., 1], at[..., 0]]
        return found


def maze_of(layout: str) -> Maze:
    """The maze of a layout's name."""
    if layout not in _MADE:
        _MADE[layout] = _maze(LAYOUTS[layout])
    return _MADE[layout]


_MADE: dict[str, Maze] = {}


def _maze(plan: Sequence[str]) -> Maze:
    marks = np.array([list(row) for row in plan])
    walls = marks == "#"
    rows, columns = np.nonzero(~walls)
    index = np.full(walls.shape, -1)
    index[rows, columns] = np.arange(len(rows))
    onward = np.stack([_towards(index, int(y), int(x)) for y, x in zip(rows, columns)], 1)
    start, goal = (int(index[marks == mark][0]) for mark in "SG")
    return Maze(walls, np.stack([columns, rows], -1) + 0.5, index, onward, start, goal)


def _towards(index: np.ndarray, y: int, x: int) -> np.ndarray:
    """[N] the next cell from each towards the one at (y, x), by breadth-first search; from there itself."""
    onward = np.full(index.max() + 1, -1)
    onward[index[y, x]] = index[y, x]
    reached = deque([(y, x)])
    while reached:
        y, x = reached.popleft()
        for beside in ((y - 1, x), (y, x + 1), (y + 1, x), (y, x - 1)):
            if index[beside] >= 0 and onward[index[beside]] < 0:
                onward[index[beside]] = index[y, x]
                reached.append(beside)
    return onward


class PointMazeArrays(ArrayEnvironment):
    """States [M, E, 6]: place (x, y) in cells, velocity in cells/s, goal (x, y); they may be set."""

    draws = 4
    action_space = spaces.Box(-1.0, 1.0, (2,))

    def __init__(
        self, seeds: Sequence[int], count: int, purpose: str, layout: str = "umaze", dense: bool = False,
        starts_drawn: bool = False, goals_drawn: bool = False, limit: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(seeds, count, purpose)
        self.maze, self.dense, self.starts_drawn, self.goals_drawn = maze_of(layout), dense, starts_drawn, goals_drawn
        self.limit = limit or LIMITS[layout]
        height, width = self.maze.walls.shape
        self.centre = np.array([width, height]) / 2
        bound = np.array([*self.centre, FASTEST, FASTEST, *self.centre][: 6 if goals_drawn else 4], np.float32)
        self.observation_space = spaces.Box(-bound, bound)

    def start(self, uniform: np.ndarray) -> np.ndarray:
        maze, others = self.maze, len(self.maze.middles) - 1
        goal = np.full(uniform.shape[:-1], maze.goal)
        if self.goals_drawn:
            goal = (uniform[..., 3] * len(maze.middles)).astype(np.int64)
        here = np.full(uniform.shape[:-1], maze.start)
        away = (goal + 1 + (uniform[..., 0] * others).astype(np.int64)) % len(maze.middles)
        here = np.where((here == goal) | self.starts_drawn, away, here)
        place = maze.middles[here] + (2 * uniform[..., 1:3] - 1) * SPREAD
        return np.concatenate([place, np.zeros_like(place), maze.middles[goal]], -1)

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        place, speed, goal = states[..., :2].copy(), states[..., 2:4].copy(), states[..., 4:]
        push = np.clip(actions.astype(np.float64), -1.0, 1.0)
        speed += TAU * (PUSH * push - DRAG * speed)
        for axis in (0, 1):
            self._move(place, speed, axis)
        far = np.sqrt(np.square(place - goal).sum(-1))
        arrived = far <= REACH
        rewards = np.where(arrived, 0.0, -far) if self.dense else arrived.astype(np.float64)
        return np.concatenate([place, speed, goal], -1), rewards, arrived

    def _move(self, place: np.ndarray, speed: np.ndarray, axis: int) -> None:
        """A step along one axis, as far as there is room; what touches a wall has no speed towards it."""
        forward = np.sign(speed[..., axis])
        place[..., axis] += TAU * speed[..., axis]
        edge = np.floor(place[..., axis] + forward * RADIUS).astype(np.int64)
        blocked = np.zeros(edge.shape, bool)
        for side in (-RADIUS, RADIUS):
            along = np.floor(place[..., 1 - axis] + side).astype(np.int64)
            blocked |= self.maze.walls[(along, edge) if axis == 0 else (edge, along)]
        wall = np.where(forward > 0, edge - RADIUS - GAP, edge + 1 + RADIUS + GAP)
        place[..., axis] = np.where(blocked, wall, place[..., axis])
        speed[..., axis] = np.where(blocked, 0.0, speed[..., axis])

    def observe(self, states: np.ndarray) -> np.ndarray:
        seen = [states[..., :2] - self.centre, states[..., 2:4]]
        if self.goals_drawn:
            seen.append(states[..., 4:] - self.centre)
        return np.concatenate(seen, -1).astype(np.float32)


class PointMazePictures(PointMazeArrays):
    """One environment that draws the maze, its goal, where the point is, and its way there since the episode began."""

    pixels = 32
    """Of a cell."""

    def reset(self) -> np.ndarray:
        seen = super().reset()
        self._begin()
        return seen

    def step(self, actions: np.ndarray) -> Step:
        step = super().step(actions)
        if step.final is not None:
            self._begin()
        self._mark(self.canvas, self.states[0, 0, :2], RADIUS, (158, 190, 226))
        return step

    def render(self) -> np.ndarray:
        """The picture [H, W, 3] of where it is, in bytes."""
        picture = self.canvas.copy()
        self._mark(picture, self.states[0, 0, :2], RADIUS, (24, 72, 150))
        return picture

    def _begin(self) -> None:
        """The maze and the goal alone."""
        plan = np.where(self.maze.walls[..., None], (90, 96, 108), (250, 250, 247)).astype(np.uint8)
        self.canvas = plan.repeat(self.pixels, 0).repeat(self.pixels, 1)
        self._mark(self.canvas, self.states[0, 0, -2:], REACH, (232, 196, 120))

    def _mark(self, picture: np.ndarray, place: np.ndarray, radius: float, colour: tuple[int, int, int]) -> None:
        """A disc about a place."""
        y, x = (np.indices(picture.shape[:2]) + 0.5) / self.pixels
        picture[np.hypot(x - place[0], y - place[1]) <= radius] = colour


class PointMaze(ControlTask, abstract=True):
    """Find the way: each axis is pushed with a force in [-1, 1], walls stop the point, arriving ends the episode.

        v <- v + 0.1 s (4 a - v),   x <- x + 0.1 s v    in cells and seconds, one axis after the other

    Without `dense` 1 is paid for arriving and nothing else, so that the mean return is the share that arrives.

    Args:
        dense: every step costs the distance that is left, in cells, as if there were no walls.
        starts: where episodes begin: in the cell of the layout, or in any that is not the goal's.
        goals: in the cell of the layout, or in any; what is drawn is seen.
        limit: steps after which an episode is truncated; None: as the layout has it.

    Shapes: observations [M, E, 4], place from the middle of the maze in cells and velocity in cells/s, with goals that
    are drawn [M, E, 6], the goal too; actions [M, E, 2].
    """

    layout: ClassVar[Layout]
    steps: ClassVar[int] = 300_000
    dense: bool = False
    starts: Literal["fixed", "drawn"] = "fixed"
    goals: Literal["fixed", "drawn"] = "fixed"
    limit: Count | None = None

    def controller(self) -> Callable[[np.ndarray], np.ndarray]:
        """The shortest way, by waypoints."""
        maze = maze_of(self.layout)
        centre, fixed, way = np.array(maze.walls.shape[::-1]) / 2, maze.middles[maze.goal], Waypoints(maze)

        def pushes(seen: np.ndarray) -> np.ndarray:
            shown = seen.astype(np.float64)
            goals = shown[..., 4:] + centre if self.goals == "drawn" else np.broadcast_to(fixed, shown[..., :2].shape)
            return way(shown[..., :2] + centre, shown[..., 2:4], goals)

        return pushes

    def ways(self) -> Ways:
        """To the middle of any cell."""
        maze = maze_of(self.layout)
        centre, way = np.array(maze.walls.shape[::-1]) / 2, Waypoints(maze)

        def towards(seen: np.ndarray, goals: np.ndarray) -> np.ndarray:
            shown = seen.astype(np.float64)
            return way(shown[..., :2] + centre, shown[..., 2:4], goals)

        def arrived(seen: np.ndarray, goals: np.ndarray) -> np.ndarray:
            found: np.ndarray = np.square(seen[..., :2] + centre - goals).sum(-1) <= REACH**2
            return found

        return Ways(maze.middles, towards, arrived)

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return self._as(PointMazeArrays, seeds, count, purpose)

    def pictured(self, seed: int, purpose: str) -> VectorEnvironment:
        """One environment, with `render`."""
        return self._as(PointMazePictures, [seed], 1, purpose)

    def _as(self, kind: type[PointMazeArrays], seeds: Sequence[int], count: int, purpose: str) -> PointMazeArrays:
        drawn = self.starts == "drawn", self.goals == "drawn"
        return kind(seeds, count, purpose, self.layout, self.dense, *drawn, self.limit)


class Waypoints:
    """Who knows the way: pushes towards the middle of the next cell on the shortest one, and brakes.

    Args:
        stiffness: push for each cell that the waypoint is away. damping: for each cell/s.

    Shapes: places, velocities, goals [..., 2] -> actions [..., 2] in [-1, 1].

    >>> maze = maze_of("umaze")
    >>> at, goal = maze.middles[maze.start], maze.middles[maze.goal]
    >>> [round(float(x), 3) for x in Waypoints(maze)(at, np.zeros(2), goal)]
    [1.0, 0.0]
    """

    def __init__(self, maze: Maze, stiffness: float = 3.0, damping: float = 1.0) -> None:
        self.maze, self.stiffness, self.damping = maze, stiffness, damping

    def __call__(self, places: np.ndarray, velocities: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """What is pushed there."""
        here, there = self.maze.cell(places), self.maze.cell(goals)
        following = self.maze.onward[here, there]
        waypoint = np.where((here == there)[..., None], goals, self.maze.middles[following])
        pushed = self.stiffness * (waypoint - places) - self.damping * velocities
        found: np.ndarray = pushed.clip(-1.0, 1.0)
        return found
