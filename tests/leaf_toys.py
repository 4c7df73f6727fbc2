"""Environments that show several things at once, or say which actions are allowed: several rooms test with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

GRID, MASKED = f"{Path(__file__)}:Grid", f"{Path(__file__)}:Masked"
"""As `--task` takes them."""


class Words(spaces.Space[str]):
    """Somebody's own space of text, as MiniGrid's missions are."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "go"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


class Grid(gym.Env):
    """As MiniGrid: an image of bytes, a direction, a mission in words; besides a vector, a depth image and a bitmap.

    The brighter half of the camera says which action is right.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict(
        camera=spaces.Box(0, 255, (7, 7, 3), np.uint8),
        depth=spaces.Box(-2.0, 6.0, (5, 5, 1), np.float32),
        direction=spaces.Discrete(4, start=1),
        mission=Words(),
        plan=spaces.Box(0, 1, (4, 4, 2), np.bool_),
        speed=spaces.Box(-np.inf, np.inf, (2,), np.float64),
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._see(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        reward = float(int(action) == self.right)
        return self._see(), reward, False, self.time >= 8, {}

    def _see(self) -> dict[str, Any]:
        self.right = int(self.np_random.integers(2))
        camera = np.zeros((7, 7, 3), np.uint8)
        camera[:, 4 * self.right : 4 * self.right + 3] = 200
        return {
            "camera": camera,
            "depth": self.np_random.uniform(-2, 6, (5, 5, 1)).astype(np.float32),
            "direction": 1 + int(self.np_random.integers(4)),
            "mission": "go left",
            "plan": self.np_random.integers(2, size=(4, 4, 2)).astype(bool),
            "speed": 100 + 5 * self.np_random.normal(size=2),
        }


class Masked(gym.Env):
    """Three actions, of which one or two are allowed; what is not allowed raises.

    Args:
        where: 'info', 'key' or 'nowhere': how the mask is said.
        ones: everything is allowed.
        fault: 'none allowed', 'forgotten', 'too short': what is wrong, from the third step of an episode on.
        several: actions are two choices.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, where: str = "info", ones: bool = False, fault: str = "", several: bool = False) -> None:
        self.where, self.ones, self.fault = where, ones, fault
        self.action_space: Any = spaces.MultiDiscrete([3, 2]) if several else spaces.Discrete(3)
        self.size = 5 if several else 3
        box = spaces.Box(-1.0, 1.0, (2,), np.float32)
        key = spaces.Dict(action_mask=spaces.MultiBinary(self.size), seen=box)
        self.observation_space = key if where == "key" else box

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._see()

    def step(self, action: Any) -> Any:
        places = np.reshape(action, -1) + np.array([0, 3])[: np.size(action)]
        if not self.mask[places].all():
            raise ValueError(f"{action} is not allowed by {self.mask}")
        self.time += 1
        observation, info = self._see()
        return observation, float(np.sum(action)), self.time >= 6, False, info

    def _see(self) -> Any:
        seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        mask = self.np_random.integers(2, size=self.size).astype(np.int8)
        mask[int(self.np_random.integers(3))] = 1
        mask[3:4] = 1
        if self.ones:
            mask[:] = 1
        if self.fault == "none allowed" and self.time >= 3:
            mask[:3] = 0
        self.mask = mask
        if self.where == "key":
            return {"seen": seen, "action_mask": mask}, {}
        given = mask[:2] if self.fault == "too short" and self.time >= 3 else mask
        said = self.where == "info" and not (self.fault == "forgotten" and self.time >= 3)
        return seen, {"action_mask": given} if said else {}


class Several:
    """As PettingZoo's are: of several agents."""


Several.__module__ = "pettingzoo.toys"  # which is how they are told


def several() -> Several:
    return Several()


def returns_class() -> type[Masked]:
    return Masked


def returns_itself() -> Any:
    return returns_itself


def returns_nothing() -> None: ...
