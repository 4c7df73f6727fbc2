"""Small environments that show images, that tests of several rooms share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from etude.core.control import ControlTask, VectorEnvironment
from etude.tasks.control._batched import ArrayEnvironment

SIDE = 10


class DotArrays(ArrayEnvironment):
    """A bright dot on a dark field of 10 x 10: say on which side it is. States [M, E, 2]: row and column."""

    draws, limit = 2, 7
    observation_space, action_space = spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8), spaces.Discrete(2)

    def start(self, uniform: np.ndarray) -> np.ndarray:
        return np.floor(uniform * SIDE)

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        right = states[..., 1] >= SIDE / 2
        reward = (right == (actions[..., 0] > 0.5)).astype(float)
        return (states + np.array([3.0, 7.0])) % SIDE, reward, np.zeros(reward.shape, bool)

    def observe(self, states: np.ndarray) -> np.ndarray:
        cells = states[..., 0] * SIDE + states[..., 1]
        return (
            np.where(np.arange(SIDE * SIDE) == cells[..., None], 255, 0)
            .astype(np.uint8)
            .reshape(*states.shape[:-1], 1, SIDE, SIDE)
        )


class Dot(ControlTask):
    id: ClassVar[str] = "dot"

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return DotArrays(seeds, count, purpose)


class CounterArrays(ArrayEnvironment):
    """Observations count the steps of the episode, in hundreds of the episode's number: nothing is random.

    Args:
        image: show the count as an image [2, 3, 3] instead of a vector [2].
    """

    draws, limit = 1, 5
    action_space = spaces.Discrete(2)

    def __init__(self, seeds: Sequence[int], count: int, purpose: str, image: bool = False) -> None:
        super().__init__(seeds, count, purpose)
        self.image = image
        shape: Any = spaces.Box(0, 255, (2, 3, 3), np.uint8) if image else spaces.Box(-np.inf, np.inf, (2,))
        self.observation_space = shape

    def start(self, uniform: np.ndarray) -> np.ndarray:
        return np.zeros((*uniform.shape[:-1], 1))

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ends = (states[..., 0] == 2) & (self.episode % 2 == 1)  # every other episode terminates after three steps
        return states + 1, states[..., 0], ends

    def observe(self, states: np.ndarray) -> np.ndarray:
        count = np.stack([states[..., 0], -states[..., 0]], -1)
        if self.image:
            return np.broadcast_to(np.abs(count)[..., None, None], (*count.shape, 3, 3)).astype(np.uint8)
        return count.astype(np.float32)
