"""Sub-goals beside the observations of a MiniGrid environment, and word of those that were completed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from etude.tasks.control._grid_teacher import Cell, Error, corrupted, subgoals

if TYPE_CHECKING:
    from minigrid.minigrid_env import MiniGridEnv

SUBGOAL = "subgoal"
"""The key of the leaf that says the sub-goal that is active."""
NONE = (0.0, 0.0, -1.0, -1.0, -1.0)
"""What it says when there is none: no way to go, no type, no colour, no state."""
LARGEST = 10
"""No number that MiniGrid shows of a cell is larger."""
TYPES = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
STATES = ("open", "closed", "locked")
"""MiniGrid's numbers of types, colours and states of doors, in order."""


class SubGoals(gym.Wrapper[Any, Any, Any, Any]):
    """A MiniGrid environment whose observations say what its teacher would have one reach next.

    A sub-goal is a cell. It is completed by a step after which the agent stands there, or during which what is in the
    cell changed (a key is taken, a door opened); then the next one is active. A step completes one at most, of which
    `info["subgoal_progress"]` is 1 - k / T, k being the steps since it became active and T the environment's limit; 0
    after all other steps. The environment's own reward is left as it is.

    Args:
        told: the share of episodes in which the teacher is heard; in the others no sub-goal is ever active.
        accuracy, error, mean, deviation: how it errs (`_grid_teacher.corrupted`).

    Observations: `image` [7, 7, 3], the agent's view, with the largest number that there is (10) as its bound;
    `direction`, one of four; `subgoal` [5]: columns and rows from the agent to the sub-goal, and the type, colour and
    state of what is in its cell now, as MiniGrid numbers them.
    """

    def __init__(
        self, env: gym.Env, *, told: float, accuracy: float, error: Error, mean: float, deviation: float
    ) -> None:
        super().__init__(env)
        self.grid_world = cast("MiniGridEnv", env.unwrapped)
        self.told, self.teacher = told, (accuracy, error, mean, deviation)
        size = max(self.grid_world.width, self.grid_world.height)
        image = cast(spaces.Dict, env.observation_space)["image"]
        low = np.array([-size, -size, -1, -1, -1], np.float32)
        self.observation_space = spaces.Dict({
            "direction": spaces.Discrete(4),
            "image": spaces.Box(0, LARGEST, image.shape, np.uint8),
            SUBGOAL: spaces.Box(low, np.array([size, size, *[LARGEST] * 3], np.float32)),
        })  # fmt: skip
        self.ahead: list[Cell] = []
        self.taken = 0

    @property
    def active(self) -> Cell | None:
        """Where the active sub-goal is; None where there is none."""
        return self.ahead[0] if self.ahead else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """An episode with the list of its sub-goals, which the seed decides too."""
        observation, info = self.env.reset(seed=seed, options=options)
        chance = np.random.default_rng(int(self.grid_world.np_random.integers(2**31)))
        heard, (accuracy, error, mean, deviation) = chance.random() < self.told, self.teacher
        self.taken, self.ahead = 0, []
        if heard:
            right = subgoals(self.grid_world)
            self.ahead = corrupted(
                right, self.grid_world.grid, chance, accuracy=accuracy, error=error, mean=mean, deviation=deviation
            )
        return self._shown(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As the environment has it, with `info["subgoal_progress"]`."""
        cell = self.active
        before = None if cell is None else self._content(cell)
        observation, reward, terminated, truncated, info = self.env.step(action)
        progress = 0.0
        if cell is not None:
            self.taken += 1
            there = tuple(int(v) for v in self.grid_world.agent_pos) == cell
            if there or self._content(cell) != before:
                progress = 1 - self.taken / self.grid_world.max_steps
                self.ahead, self.taken = self.ahead[1:], 0
        return self._shown(observation), float(reward), terminated, truncated, {**info, "subgoal_progress": progress}

    def _content(self, cell: Cell) -> tuple[int, int, int]:
        """Type, colour and state of what is in a cell."""
        thing = self.grid_world.grid.get(*cell)
        return (TYPES.index("empty"), 0, 0) if thing is None else thing.encode()

    def _shown(self, observation: dict[str, Any]) -> dict[str, Any]:
        said = NONE
        if (cell := self.active) is not None:
            x, y = (int(v) for v in self.grid_world.agent_pos)
            said = (cell[0] - x, cell[1] - y, *self._content(cell))
        return {
            "direction": observation["direction"], "image": observation["image"], SUBGOAL: np.array(said, np.float32)
        }  # fmt: skip
