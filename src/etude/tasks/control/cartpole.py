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
X_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * np.pi / 360


class CartPoleArrays(ArrayEnvironment):
    """States [M, E, 4]: position, velocity, angle, angular velocity."""

    draws, limit = 4, 500
    _bound = np.array([2 * X_LIMIT, np.inf, 2 * ANGLE_LIMIT, np.inf], np.float32)
    observation_space, action_space = spaces.Box(-_bound, _bound), spaces.Discrete(2)

    def start(self, uniform: np.ndarray) -> np.ndarray:
        return uniform * 0.1 - 0.05

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, v, angle, spin = np.moveaxis(states, -1, 0)
        force = np.where(actions[..., 0] > 0.5, FORCE, -FORCE)
        cos, sin, total = np.cos(angle), np.sin(angle), CART + POLE
        pushed = (force + POLE * HALF_LENGTH * spin**2 * sin) / total
        spun = (GRAVITY * sin - cos * pushed) / (HALF_LENGTH * (4.0 / 3.0 - POLE * cos**2 / total))
        moved = pushed - POLE * HALF_LENGTH * spun * cos / total
        states = np.stack([x + TAU * v, v + TAU * moved, angle + TAU * spin, spin + TAU * spun], -1)
        terminated = (np.abs(states[..., 0]) > X_LIMIT) | (np.abs(states[..., 2]) > ANGLE_LIMIT)
        return states, np.ones(terminated.shape, np.float32), terminated

    def observe(self, states: np.ndarray) -> np.ndarray:
        return states.astype(np.float32)


class CartPole(ControlTask):
    """500 is the best return."""

    id: ClassVar[str] = "cartpole"
    steps: ClassVar[int] = 100_000

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return CartPoleArrays(seeds, count, purpose)


cartpole = CartPole()
