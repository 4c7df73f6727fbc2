"""A chain of points in a maze: the first has a heading that turns slowly, and draws the others along."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from gymnasium import spaces

from etude.core.control import VectorEnvironment, Ways
from etude.tasks.control._pointmaze import (
    DRAG,
    RADIUS,
    REACH,
    TAU,
    Maze,
    PointMaze,
    PointMazeArrays,
    PointMazePictures,
    maze_of,
)

PUSH, SPIN, FRICTION = 2.0, 2.0, 2.0
"""Acceleration of both legs, in cells/s^2; of one leg against the other, in rad/s^2; what a second's turning loses."""
FASTEST, FASTEST_TURN = PUSH / DRAG, SPIN / FRICTION
"""Cells/s and rad/s that no push exceeds: a quarter turn takes more than a second and a half."""
POINTS, LINK, TAUT = 3, 0.25, 0.6
"""How many, how far apart the next one is drawn along, and the most that a link gives: cells."""
LIMITS = {"umaze": 500, "medium": 800, "large": 1500}
"""Steps of an episode: about five times those of who knows the way."""


def wrapped(angles: np.ndarray) -> np.ndarray:
    """The same angles in [-pi, pi).

    >>> wrapped(np.array([0.0, 3 * np.pi / 2])).tolist()
    [0.0, -1.5707963267948966]
    """
    found: np.ndarray = (angles + np.pi) % (2 * np.pi) - np.pi
    return found


class ChainMazeArrays(PointMazeArrays):
    """States [M, E, 11]: place (x, y) of the first point in cells, its speed along its heading in cells/s, its turning
    in rad/s, its heading in rad, the places of the others, goal (x, y); they may be set.
    """

    draws = 5
    action_space = spaces.Box(-1.0, 1.0, (2,))

    def __init__(
        self, seeds: Sequence[int], count: int, purpose: str, layout: str = "umaze", dense: bool = False,
        starts_drawn: bool = False, goals_drawn: bool = False, limit: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(seeds, count, purpose, layout, dense, starts_drawn, goals_drawn, limit or LIMITS[layout])
        links = [TAUT * k for k in range(1, POINTS) for _ in range(2)]
        own = [*self.centre, FASTEST, FASTEST_TURN, 1.0, 1.0, *links]
        bound = np.array(own + list(self.centre) * goals_drawn, np.float32)
        self.observation_space = spaces.Box(-bound, bound)

    def start(self, uniform: np.ndarray) -> np.ndarray:
        """As the point begins, with any heading; the others lie where the first does."""
        point = super().start(uniform[..., :4])
        place, still, goal = point[..., :2], point[..., 2:4], point[..., 4:]
        heading = np.pi * (2 * uniform[..., 4:] - 1)
        return np.concatenate([place, still, heading, *[place] * (POINTS - 1), goal], -1)

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        before, places = points_of(states), points_of(states).copy()
        speed, turning, heading, goal = states[..., 2], states[..., 3], states[..., 4], states[..., -2:]
        left, right = np.moveaxis(np.clip(actions.astype(np.float64), -1.0, 1.0), -1, 0)
        speed = speed + TAU * (PUSH * (left + right) / 2 - DRAG * speed)
        turning = turning + TAU * (SPIN * (right - left) / 2 - FRICTION * turning)
        heading = wrapped(heading + TAU * turning)
        ahead = np.stack([np.cos(heading), np.sin(heading)], -1)
        velocity = speed[..., None] * ahead
        self._moved(places[..., 0, :], velocity)
        for k in range(1, POINTS):
            self._moved(places[..., k, :], _drawn(places[..., k - 1, :] - places[..., k, :]) / TAU)
        links = np.sqrt(np.square(places[..., 1:, :] - places[..., :-1, :]).sum(-1))
        caught = (links > TAUT).any(-1)
        places[caught] = before[caught]
        speed = np.where(caught, 0.0, (velocity * ahead).sum(-1))
        far = np.sqrt(np.square(places[..., 0, :] - goal).sum(-1))
        arrived = far <= REACH
        rewards = np.where(arrived, 0.0, -far) if self.dense else arrived.astype(np.float64)
        rest = places[..., 1:, :].reshape(*places.shape[:-2], -1)
        own = np.stack([speed, turning, heading], -1)
        return np.concatenate([places[..., 0, :], own, rest, goal], -1), rewards, arrived

    def _moved(self, place: np.ndarray, velocity: np.ndarray) -> None:
        """A step of one point, in place, as far as there is room."""
        for axis in (0, 1):
            self._move(place, velocity, axis)

    def observe(self, states: np.ndarray) -> np.ndarray:
        places = points_of(states)
        rest = (places[..., 1:, :] - places[..., :1, :]).reshape(*places.shape[:-2], -1)
        heading = states[..., 4:5]
        seen = [places[..., 0, :] - self.centre, states[..., 2:4], np.cos(heading), np.sin(heading), rest]
        if self.goals_drawn:
            seen.append(states[..., -2:] - self.centre)
        return np.concatenate(seen, -1).astype(np.float32)


def points_of(states: np.ndarray) -> np.ndarray:
    """[..., K, 2] the places of all points of states [..., S]."""
    flat = np.concatenate([states[..., :2], states[..., 5:-2]], -1)
    found: np.ndarray = flat.reshape(*flat.shape[:-1], POINTS, 2)
    return found


def _drawn(towards: np.ndarray) -> np.ndarray:
    """How far a point is drawn along by one that is so far ahead, [..., 2]: until the link is slack."""
    far = np.sqrt(np.square(towards).sum(-1, keepdims=True))
    found: np.ndarray = towards * (np.maximum(far - LINK, 0.0) / np.maximum(far, LINK))
    return found


class ChainMazePictures(PointMazePictures, ChainMazeArrays):
    """One environment that draws the maze, its goal, the chain, and the way of its first point."""

    def render(self) -> np.ndarray:
        picture, places, heading = super().render(), points_of(self.states[0, 0]), self.states[0, 0, 4]
        for place in places[:0:-1]:
            self._mark(picture, place, RADIUS, (98, 130, 190))
        self._mark(picture, places[0], RADIUS, (24, 72, 150))
        nose = places[0] + RADIUS * np.array([np.cos(heading), np.sin(heading)])
        self._mark(picture, nose, RADIUS / 2, (200, 60, 50))
        return picture


class ChainMaze(PointMaze, abstract=True):
    """Find the way as a chain of three points: two legs push the first along its heading and turn it, slowly.

        v <- v + 0.1 s ((left + right) - v),         along the heading, in cells and seconds
        w <- w + 0.1 s ((right - left) - 2 w),       of the heading, in rad and seconds: a quarter turn takes 1.6 s

    The others follow as on a string of 0.25 cells. Walls stop every point, and where a link would be longer than 0.6
    cells, since a point behind is caught at a corner, all stay where they were and the speed is 0. So which cell is
    next is one thing to learn, and how to get there another. Rewards, starts, goals and ends are the point maze's.

    Args:
        dense: every step costs the distance that is left, in cells, as if there were no walls.
        starts: where episodes begin: in the cell of the layout, or in any that is not the goal's.
        goals: in the cell of the layout, or in any; what is drawn is seen.
        limit: steps after which an episode is truncated; None: as the layout has it.

    Shapes: observations [M, E, 10], place from the middle of the maze in cells, speed, turning, cosine and sine of the
    heading, places of the others from the first; with goals that are drawn [M, E, 12], the goal too; actions [M, E, 2].
    """

    def controller(self) -> Callable[[np.ndarray], np.ndarray]:
        """The shortest way, by waypoints."""
        maze = maze_of(self.layout)
        fixed, way = maze.middles[maze.goal], Crawling(maze)

        def legs(seen: np.ndarray) -> np.ndarray:
            shown = seen.astype(np.float64)
            drawn = self.goals == "drawn"
            goals = shown[..., -2:] + way.centre if drawn else np.broadcast_to(fixed, shown[..., :2].shape)
            return way(shown, goals)

        return legs

    def ways(self) -> Ways:
        """To the middle of any cell."""
        point, way = super().ways(), Crawling(maze_of(self.layout))
        return point._replace(towards=lambda seen, goals: way(seen.astype(np.float64), goals))

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return self._as(ChainMazeArrays, seeds, count, purpose)

    def pictured(self, seed: int, purpose: str) -> VectorEnvironment:
        return self._as(ChainMazePictures, [seed], 1, purpose)


class Crawling:
    """Who knows the way: turns towards the middle of the next cell on the shortest one, and goes when it looks there.

    Args:
        turn: push for each rad that the waypoint is off. calm: for each rad/s. brake: rad off at which it stops.

    Shapes: observations [..., D], goals [..., 2] -> actions [..., 2] in [-1, 1].

    >>> way = Crawling(maze_of("umaze"))
    >>> at = np.array([-1.0, 1.0, 0.0, 0.0, 1.0, 0.0])  # at the start, and looks along the corridor
    >>> [round(float(x), 3) for x in way(at, way.maze.middles[way.maze.goal])]
    [1.0, 1.0]
    """

    def __init__(self, maze: Maze, turn: float = 4.0, calm: float = 2.0, brake: float = 0.3) -> None:
        self.maze, self.turn, self.calm, self.brake = maze, turn, calm, brake
        self.centre = np.array(maze.walls.shape[::-1]) / 2

    def __call__(self, seen: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """What the legs push."""
        place, speed, turning = seen[..., :2] + self.centre, seen[..., 2], seen[..., 3]
        heading = np.arctan2(seen[..., 5], seen[..., 4])
        here, there = self.maze.cell(place), self.maze.cell(goals)
        waypoint = np.where((here == there)[..., None], goals, self.maze.middles[self.maze.onward[here, there]])
        apart = waypoint - place
        off = wrapped(np.arctan2(apart[..., 1], apart[..., 0]) - heading)
        apace = np.maximum(np.cos(off), 0.0) ** 3 - np.where(np.abs(off) > self.brake, speed, 0.0)
        about = self.turn * off - self.calm * turning
        found: np.ndarray = np.stack([apace - about, apace + about], -1).clip(-1.0, 1.0)
        return found
