"""A room with a thermostat: what it logged in sixty days, and the room itself, to see what a policy earns in it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np


class Room(gymnasium.Env):
    """Inside and outside temperature are seen, the heating is from 0 to 1; a step is a quarter of an hour."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    observation_space = gymnasium.spaces.Box(-30.0, 60.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.inside, self.outside, self.time = self.np_random.uniform(14, 22), self.np_random.uniform(-5, 10), 0
        return self._see(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        heating = float(np.clip(action[0], 0, 1))
        self.inside += 0.05 * (self.outside - self.inside) + 2 * heating
        self.outside = float(np.clip(self.outside + self.np_random.normal(0, 0.3), -10, 15))
        self.time += 1
        reward = -abs(self.inside - 20) - 0.5 * heating
        return self._see(), reward, False, self.time >= 96, {}

    def _see(self) -> np.ndarray:
        return np.array([self.inside, self.outside], np.float32)


def log_days(path: Path, days: int = 60, first: int = 0) -> None:
    """Heat fully below 19 degrees until 21 are reached; on some days somebody turns the knob now and then."""
    room, chance = Room(), np.random.default_rng(first)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["day", "inside", "outside", "heating", "score"])
        for day in range(first, first + days):
            (inside, outside), _ = room.reset(seed=day)
            heating, over = 0.0, False
            while not over:
                heating = 1.0 if inside < 19 else 0.0 if inside > 21 else heating
                if day % 2 and chance.random() < 0.3:
                    heating = float(chance.uniform())
                (after, cold), score, _, over, _ = room.step(np.array([heating]))
                rows.writerow([day, f"{inside:.3f}", f"{outside:.3f}", f"{heating:.3f}", f"{score:.3f}"])
                inside, outside = after, cold


if __name__ == "__main__":
    log_days(Path("thermostat.csv"))
