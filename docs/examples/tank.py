"""A water tank: open the valve so that the level stays at half, whatever is drawn from it."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np


class Tank(gymnasium.Env):
    """Level and demand are seen; the valve is closed, half open or open. Full or empty, the episode is over."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.level, self.demand, self.time = self.np_random.uniform(0.3, 0.7), 0.5, 0
        return self._see(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.demand = float(np.clip(self.demand + self.np_random.normal(0, 0.1), 0, 1))
        self.level = float(np.clip(self.level + 0.1 * (action / 2 - self.demand), 0, 1))
        self.time += 1
        terminated = self.level in (0.0, 1.0)
        reward = 1.0 - 2 * abs(self.level - 0.5)
        return self._see(), reward, terminated, self.time >= 100, {}

    def _see(self) -> np.ndarray:
        return np.array([self.level, self.demand], np.float32)
