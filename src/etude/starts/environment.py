"""My environment: keep a pointer in the middle, whatever pushes it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class MyEnvironment(gymnasium.Env[np.ndarray, Any]):
    """What is seen is the position and the last push; the action moves the pointer left, not at all, or right."""

    def __init__(self, limit: int = 200) -> None:
        # arguments of your own: --set task.arguments={"limit":100}
        self.limit = limit
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)  # seeds self.np_random, from which all that is random is drawn
        self.position, self.push, self.time = float(self.np_random.uniform(-0.5, 0.5)), 0.0, 0
        return self._see(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.push = float(np.clip(self.push + self.np_random.normal(0, 0.02), -0.1, 0.1))
        self.position += self.push + 0.1 * (int(action) - 1)
        self.time += 1
        terminated = abs(self.position) > 1  # the task ended: no value after it
        truncated = self.time >= self.limit  # the time ended: its value goes on
        return self._see(), 1.0 - abs(self.position), terminated, truncated, {}

    def _see(self) -> np.ndarray:
        # inside of the space, of its type
        return np.array([self.position, self.push], np.float32).clip(-1, 1)
