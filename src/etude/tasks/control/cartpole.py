"""Cart-pole, built in: keep a pole upright on a cart for 500 steps (Barto, Sutton and Anderson, 1983).

The dynamics, bounds and rewards are those of Gymnasium's CartPole-v1, over arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from gymnasium import spaces

from etude.core.control import ControlTask, VectorEnvironment
from etude.tasks.control._batched import ArrayEnvironment

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
TOTAL = CART + POLE
X_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * np.pi / 360
LIMITS = np.array([X_LIMIT, np.inf, ANGLE_LIMIT, np.inf])


class CartPoleArrays(ArrayEnvironment):
    """States [M, E, 4]: position, velocity, angle, angular velocity."""

    draws, limit = 4, 500
    _bound = np.array([2 * X_LIMIT, np.inf, 2 * ANGLE_LIMIT, np.inf], np.float32)
    observation_space, action_space = spaces.Box(-_bound, _bound), spaces.Discrete(2)

    def start(self, uniform: np.ndarray) -> np.ndarray:
        return uniform * 0.1 - 0.05

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        angle, spin = states[..., 2], states[..., 3]
        cos, sin = np.cos(angle), np.sin(angle)
        pushed = (actions[..., 0] * (2 * FORCE) - FORCE + POLE * HALF_LENGTH * spin * spin * sin) / TOTAL
        spun = (GRAVITY * sin - cos * pushed) / (HALF_LENGTH * (4.0 / 3.0 - POLE * cos * cos / TOTAL))
        moved = pushed - POLE * HALF_LENGTH * spun * cos / TOTAL
        found = states.copy()
        found[..., 0] += TAU * states[..., 1]
        found[..., 1] += TAU * moved
        found[..., 2] += TAU * spin
        found[..., 3] += TAU * spun
        outside = np.abs(found) > LIMITS
        return found, np.ones(spin.shape, np.float32), outside.any(-1)

    def observe(self, states: np.ndarray) -> np.ndarray:
        return states.astype(np.float32)


class CartPole(ControlTask):
    """500 is the best return."""

    id: ClassVar[str] = "cartpole"
    steps: ClassVar[int] = 100_000
    rendered: ClassVar[str] = "CartPole-v1"

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return CartPoleArrays(seeds, count, purpose)


cartpole = CartPole()
