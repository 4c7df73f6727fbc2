"""MiniGrid with a teacher: grids with rooms, doors and keys, and beside what is seen what to reach next.

The environments are those of the package `minigrid` (arXiv:2306.13831), with their views of 7 x 7 cells, seven actions
and rewards: 1 - 0.9 t / T for reaching the end of the level in t of T steps, else nothing. A teacher that sees the
whole grid says sub-goals in their order, or wrong ones as often and as far as it is told to err; its word is a part of
the observation, and what is completed is said beside the reward (`_subgoals.py`), for methods that pay for it. Nobody
else's numbers change: with `told=0` all is as without a teacher, and the sub-goal shown always "none".
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from etude.core.control import ControlTask, VectorEnvironment
from etude.core.errors import ConfigError, MissingExtraError, UnknownNameError
from etude.core.fields import NonNegative, Positive, Probability
from etude.tasks.control import _names

if TYPE_CHECKING:
    import gymnasium as gym


class MiniGridSubgoals(ControlTask):
    """A level of MiniGrid whose observations say the next sub-goal.

    Args:
        level: the environment's id. The teacher knows levels that end at a goal tile, with something picked up or with
            a door opened, behind doors that are shut or locked: Empty, FourRooms, MultiRoom, DoorKey, Unlock,
            UnlockPickup, KeyCorridor, LavaGap and their like.
        told: share of episodes in which there is a teacher.
        accuracy: how often each of its sub-goals is the right one.
        error: what stands in the place of a right one: another 'object' of the grid, or a 'place' some way off.
        mean, deviation: of that way's length in cells, a Manhattan distance, normal and at least 1.
        workers: each environment in a process of its own.
        step_timeout: seconds that one step of all environments may take.

    Raises: MissingExtraError without the package, UnknownNameError for a level that it has not, ConfigError for one
    that the teacher cannot teach.

    Shapes: observations [M, E, 156]: the direction (4), the view [3, 7, 7] and the sub-goal (5); one of 7 actions.

    In the empty room of three by three the goal (8, green and open: 1, 0) is two columns and two rows away; a step
    forward (action 2) leaves one column:

    >>> import numpy as np
    >>> room = minigrid_subgoals.replace(level="MiniGrid-Empty-5x5-v0").make([0], 1)
    >>> room.reset()[0, 0, -5:].tolist(), room.step(np.array([[[2]]])).observations[0, 0, -5:].tolist()
    ([2.0, 2.0, 8.0, 1.0, 0.0], [1.0, 2.0, 8.0, 1.0, 0.0])
    """

    id: ClassVar[str] = "minigrid-subgoals"
    steps: ClassVar[int] = 200_000
    level: str = "MiniGrid-DoorKey-5x5-v0"
    told: Probability = 1.0
    accuracy: Probability = 1.0
    error: Literal["object", "place"] = "object"
    mean: Positive = 2.0
    deviation: NonNegative = 1.0
    workers: bool = False
    step_timeout: Positive = 60.0

    @property
    def runs_on(self) -> str:
        return "gymnasium"

    def single(self, **arguments: object) -> gym.Env:
        """One environment with these arguments of MiniGrid's, as `render_mode='rgb_array'`."""
        from etude.tasks.control._subgoals import SubGoals

        try:
            importlib.import_module("minigrid")  # which registers its levels
        except ImportError:
            raise MissingExtraError(f"The task {self.id}", "minigrid") from None
        known = {name for name in _names.gymnasium_ids() if name.startswith("MiniGrid-")}
        if self.level not in known:
            raise UnknownNameError("level of MiniGrid", self.level, known)
        env = _names.open_environment(self.level, arguments)
        try:
            return SubGoals(
                env, told=self.told, accuracy=self.accuracy, error=self.error, mean=self.mean, deviation=self.deviation
            )
        except ConfigError:
            env.close()
            raise

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        from etude.experience.gymnasium_vector import GymnasiumVector

        self._check_level()
        make = functools.partial(MiniGridSubgoals.single, self)
        return GymnasiumVector(
            make, seeds, count, purpose, name=self.level, workers=self.workers, step_timeout=self.step_timeout
        )

    def _check_level(self) -> None:
        """Ask the teacher once, so that a level that it cannot teach is refused before a run begins."""
        env = self.single()
        try:
            env.reset(seed=0)
        finally:
            env.close()


minigrid_subgoals = MiniGridSubgoals()
