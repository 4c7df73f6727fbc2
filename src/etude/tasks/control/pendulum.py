"""Pendulum, built in: swing a pendulum up and keep it there, 200 steps.

The dynamics and rewards are those of Gymnasium's Pendulum-v1, over arrays: r = -(angle^2 + 0.1 spin^2 + 0.001 u^2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from gymnasium import spaces

from etude.core.control import ControlTask, VectorEnvironment
from etude.tasks.control._batched import ArrayEnvironment

MAX_SPIN, MAX_TORQUE, TAU, GRAVITY, MASS, LENGTH = 8.0, 2.0, 0.05, 10.0, 1.0, 1.0


class PendulumArrays(ArrayEnvironment):
    """States [M, E, 2]: angle (0 is up), angular velocity."""

    draws, limit = 2, 200
    gravity: ClassVar[float] = GRAVITY
    _bound = np.array([1.0, 1.0, MAX_SPIN], np.float32)
    observation_space, action_space = spaces.Box(-_bound, _bound), spaces.Box(-MAX_TORQUE, MAX_TORQUE, (1,))

    def start(self, uniform: np.ndarray) -> np.ndarray:
        found: np.ndarray = (2 * uniform - 1) * np.array([np.pi, 1.0])
        return found

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        angle, spin = states[..., 0], states[..., 1]
        torque = np.clip(actions[..., 0].astype(np.float64), -MAX_TORQUE, MAX_TORQUE)
        off = (angle + np.pi) % (2 * np.pi) - np.pi
        reward = -(off**2 + 0.1 * spin**2 + 0.001 * torque**2)
        pull = 3 * self.gravity / (2 * LENGTH) * np.sin(angle) + 3.0 / (MASS * LENGTH**2) * torque
        spin = np.clip(spin + pull * TAU, -MAX_SPIN, MAX_SPIN)
        return np.stack([angle + spin * TAU, spin], -1), reward, np.zeros(reward.shape, bool)

    def observe(self, states: np.ndarray) -> np.ndarray:
        angle = states[..., 0]
        return np.stack([np.cos(angle), np.sin(angle), states[..., 1]], -1).astype(np.float32)


class Pendulum(ControlTask):
    """Returns from about -1600 (hanging) to about -150 (swung up at once).

    Shapes: observations [M, E, 3], actions [M, E, 1].

    >>> Pendulum().make(seeds=[0, 1], count=3).reset().shape
    (2, 3, 3)
    """

    id: ClassVar[str] = "pendulum"
    steps: ClassVar[int] = 300_000
    rendered: ClassVar[str] = "Pendulum-v1"

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return PendulumArrays(seeds, count, purpose)


pendulum = Pendulum()
