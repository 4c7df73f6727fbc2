"""Cart-pole, built in: keep a pole upright on a cart for 500 steps (Barto, Sutton and Anderson, 1983).

The dynamics, bounds and rewards are those of Gymnasium's CartPole-v1, over arrays. Gusts of wind make it hard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

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
        cos, sin, pushes = np.cos(angle), np.sin(angle), PUSHES[actions[..., 0].astype(np.intp)]
        rewards = np.empty(spin.shape, np.float32)
        rewards.fill(1.0)
        if spin.size == 1 and not self.gust:  # one cart in Python's numbers: the same bits in a third of the time
            x, v, turn, turning = states.ravel().tolist()
            faster, spun = _accelerations(turning, cos.item(), sin.item(), pushes.item(), 0.0)
            x, turn = x + TAU * v, turn + TAU * turning
            fallen = np.array(abs(x) > X_LIMIT or abs(turn) > ANGLE_LIMIT).reshape(spin.shape)
            return np.array((x, v + TAU * faster, turn, turning + TAU * spun)).reshape(states.shape), rewards, fallen
        wind = self.gust / TOTAL * (2 * self.luck(1)[..., 0] - 1) if self.gust else 0.0
        rates = np.empty_like(states)
        rates[..., ::2] = states[..., 1::2]
        rates[..., 1], rates[..., 3] = _accelerations(spin, cos, sin, pushes, wind)
        moved = states + TAU * rates
        fallen = (np.abs(moved[..., 0]) > X_LIMIT) | (np.abs(moved[..., 2]) > ANGLE_LIMIT)
        return moved, rewards, fallen

    def observe(self, states: np.ndarray) -> np.ndarray:
        return states.astype(np.float32)


def _accelerations(spin: Any, cos: Any, sin: Any, push: Any, wind: Any) -> tuple[Any, Any]:
    """Of the cart and of the pole's angle; arrays or floats."""
    coupled, pushed = SWING * cos, push + SWING * sin * spin * spin + wind
    spun = (GRAVITY * sin - cos * pushed) / (HALF_LENGTH * 4.0 / 3.0 - coupled * cos)
    return pushed - coupled * spun, spun


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
