"""Cart-pole, built in: keep a pole upright on a cart for 500 steps (Barto, Sutton and Anderson, 1983).

The dynamics, bounds and rewards are those of Gymnasium's CartPole-v1, over arrays. Gusts of wind make it hard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from gymnasium import spaces

from etude.core.control import ControlTask, VectorEnvironment
from etude.core.fields import NonNegative
from etude.tasks.control._batched import ArrayEnvironment

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
TOTAL = CART + POLE
X_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * np.pi / 360
PUSHES = np.array([-FORCE, FORCE]) / TOTAL
SWING = POLE * HALF_LENGTH / TOTAL
"""What both of the cart's terms in the pole's motion have as a factor."""


class CartPoleArrays(ArrayEnvironment):
    """States [M, E, 4]: position, velocity, angle, angular velocity."""

    draws, limit = 4, 500
    gust = 0.0
    _bound = np.array([2 * X_LIMIT, np.inf, 2 * ANGLE_LIMIT, np.inf], np.float32)
    observation_space, action_space = spaces.Box(-_bound, _bound), spaces.Discrete(2)

    def start(self, uniform: np.ndarray) -> np.ndarray:
        return uniform * 0.1 - 0.05

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        angle, spin = states[..., 2], states[..., 3]
        cos, sin = np.cos(angle), np.sin(angle)
        coupled = SWING * cos
        pushed = PUSHES[actions[..., 0].astype(np.intp)] + SWING * sin * spin * spin
        if self.gust:
            pushed += self.gust / TOTAL * (2 * self.luck(1)[..., 0] - 1)
        spun = (GRAVITY * sin - cos * pushed) / (HALF_LENGTH * 4.0 / 3.0 - coupled * cos)
        rates = np.empty_like(states)
        rates[..., ::2] = states[..., 1::2]
        rates[..., 1] = pushed - coupled * spun
        rates[..., 3] = spun
        moved = states + TAU * rates
        fallen = (np.abs(moved[..., 0]) > X_LIMIT) | (np.abs(moved[..., 2]) > ANGLE_LIMIT)
        rewards = np.empty(spin.shape, np.float32)
        rewards.fill(1.0)
        return moved, rewards, fallen

    def observe(self, states: np.ndarray) -> np.ndarray:
        return states.astype(np.float32)


class CartPole(ControlTask):
    """500 is the best return.

    Args:
        gust: in newtons; in every step wind pushes the cart with a force drawn uniformly from [-gust, gust], beside the
            10 N of the action.

    Shapes: observations [M, E, 4], one of two actions.

    >>> CartPole().make(seeds=[0, 1], count=3).reset().shape
    (2, 3, 4)
    """

    id: ClassVar[str] = "cartpole"
    steps: ClassVar[int] = 100_000
    gust: NonNegative = 0.0

    @property
    def rendered(self) -> str:  # type: ignore[override]  # depends on fields
        """Gymnasium's id of the same environment, in which there is no wind."""
        return "" if self.gust else "CartPole-v1"

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        made = CartPoleArrays(seeds, count, purpose)
        made.gust = self.gust
        return made


cartpole = CartPole()
