"""The linear-quadratic regulator, built in: hold a drifting point at the origin; the best gain is known exactly.

    x' = A x + B u + w,   reward = -(x^T x + effort u^T u)

A is 1 on its diagonal and `coupling` above it, B is 1/2 on its diagonal, w uniform in [-wind, wind] in every direction.
The best policy is linear, u = -K x, with

    K = gamma (effort I + gamma B^T V B)^-1 B^T V A,   V = I + effort K^T K + gamma (A - B K)^T V (A - B K)

(Bertsekas, Dynamic Programming and Optimal Control, section 4.1, discounted).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from etude.core.control import ControlTask, VectorEnvironment
from etude.core.fields import Count, Interval, NonNegative, Positive
from etude.tasks.control._batched import ArrayEnvironment

PUSH, MOST = 0.5, 2.0
"""How far an action of 1 moves the point, and the largest action."""
Array = NDArray[np.floating[Any]]


class RegulatorArrays(ArrayEnvironment):
    """States [M, E, d]: where the point is."""

    action_space: spaces.Box

    def __init__(self, task: Regulator, seeds: Sequence[int], count: int, purpose: str) -> None:
        super().__init__(seeds, count, purpose)
        d = task.dimensions
        self.drift, self.effort, self.wind, self.limit = task.drift(), task.effort, task.wind, task.limit
        self.draws = d  # type: ignore[misc]  # of its class in other environments
        self.observation_space = spaces.Box(-np.inf, np.inf, (d,))
        self.action_space = spaces.Box(-MOST, MOST, (d,))

    def start(self, uniform: np.ndarray) -> np.ndarray:
        return 2 * uniform - 1

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        pushed = np.clip(actions.astype(np.float64), -MOST, MOST)
        reward = -(states**2).sum(-1) - self.effort * (pushed**2).sum(-1)
        moved = (self.drift * states[..., None, :]).sum(-1) + PUSH * pushed
        if self.wind:
            moved += self.wind * (2 * self.luck(states.shape[-1]) - 1)
        return moved, reward, np.zeros(reward.shape, bool)

    def observe(self, states: np.ndarray) -> np.ndarray:
        return states.astype(np.float32)


class Regulator(ControlTask):
    """A return near 0 is best; doing nothing costs the distance squared in every step.

    Args:
        dimensions: d. coupling: how much of each coordinate is added to the one before it.
        effort: what an action costs.
        wind: how far chance moves the point.
        limit: steps after which an episode is truncated; it begins anywhere in [-1, 1]^d.

    Shapes: observations [M, E, d], actions [M, E, d] in [-2, 2], which bounds no action of the best policy while the
    point is near.

    In one dimension with gamma 0.9, 0.225 V^2 - 0.2 V - 0.25 = 0: V = 1.5884, and K = 0.45 V / (0.25 + 0.225 V):

    >>> round(Regulator(dimensions=1).gain(gamma=0.9).item(), 4)
    1.1768
    """

    id: ClassVar[str] = "regulator"
    steps: ClassVar[int] = 10_000
    dimensions: Count = 2
    coupling: Annotated[float, Interval(ge=-1, le=1)] = 0.2
    effort: Positive = 0.25
    wind: NonNegative = 0.0
    limit: Count = 50

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return RegulatorArrays(self, seeds, count, purpose)

    # What is known exactly

    def drift(self) -> Array:
        """A [d, d]."""
        found: Array = np.eye(self.dimensions) + self.coupling * np.eye(self.dimensions, k=1)
        return found

    def worth(self, gain: Array, gamma: float) -> Array:
        """V [d, d] of u = -gain x: from x on, -x^T V x is earned, and `in_the_wind` less where there is wind."""
        d = self.dimensions
        closed = self.drift() - PUSH * gain
        costs = np.eye(d) + self.effort * gain.T @ gain
        found: Array = np.linalg.solve(np.eye(d * d) - gamma * np.kron(closed.T, closed.T), costs.ravel())
        return found.reshape(d, d)

    def improved(self, worth: Array, gamma: float) -> Array:
        """The best gain where -x^T worth x is earned after the next step."""
        weight = self.effort * np.eye(self.dimensions) + gamma * PUSH**2 * worth
        found: Array = np.linalg.solve(weight, gamma * PUSH * worth @ self.drift())
        return found

    def gain(self, gamma: float) -> Array:
        """K [d, d] of the best policy, by policy iteration from doing nothing."""
        gain: Array = np.zeros((self.dimensions, self.dimensions))
        following: Array | None = None
        while following is None or np.abs(gain - following).max() > 1e-13:
            gain, following = self.improved(self.worth(gain, gamma), gamma), gain
        return gain

    def in_the_wind(self, worth: Array, gamma: float) -> float:
        """What wind costs from any state on: gamma / (1 - gamma) wind^2 / 3 tr V."""
        return float(gamma / (1 - gamma) * self.wind**2 / 3 * np.trace(worth))

    def action_gradient(self, states: Array, actions: Array, worth: Array, gamma: float) -> Array:
        """d Q / d u at x and u [N, d], where u = -gain x with this `worth` follows: -2 (effort u + gamma B V x')."""
        moved = states @ self.drift().T + PUSH * actions
        return -2 * (self.effort * actions + gamma * PUSH * moved @ worth.T)


regulator = Regulator()
