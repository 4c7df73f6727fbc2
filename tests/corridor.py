"""A corridor whose value and observations are known, as an environment of Gymnasium and over arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from etude.core.control import ControlTask, VectorEnvironment
from etude.experience.gymnasium_vector import GymnasiumVector
from etude.tasks.control._batched import ArrayEnvironment

LENGTH, LIMIT = 5, 3


class Corridor(gym.Env):
    """From a place before 3, one step further each time, which pays 1; it ends at 5, or after 3 steps."""

    observation_space, action_space = spaces.Box(0.0, LENGTH, (1,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.taken = int(self.np_random.integers(3)), 0
        return np.array([self.place], np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place, self.taken = self.place + 1, self.taken + 1
        over = self.place == LENGTH
        return np.array([self.place], np.float32), 1.0, over, self.taken == LIMIT and not over, {"cost": self.place / 2}


class CorridorArrays(ArrayEnvironment):
    """The same over arrays."""

    observation_space, action_space, limit = Corridor.observation_space, Corridor.action_space, LIMIT

    def start(self, uniform: np.ndarray) -> np.ndarray:
        return np.floor(3 * uniform)

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return states + 1, np.ones(states.shape[:2]), states[..., 0] + 1 == LENGTH

    def observe(self, states: np.ndarray) -> np.ndarray:
        return states.astype(np.float32)


class CorridorTask(ControlTask):
    id: ClassVar[str] = "corridor"
    arrays: bool = False

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        if self.arrays:
            return CorridorArrays(seeds, count, purpose)
        return GymnasiumVector(Corridor, seeds, count, purpose, name="corridor")
