"""Tasks that are learned in a few hundred steps: what tests of made data share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from gymnasium import spaces

from etude.core.control import ControlTask, VectorEnvironment
from etude.tasks.control._batched import ArrayEnvironment


class SideArrays(ArrayEnvironment):
    """A number x in [-1, 1] is shown: say its sign. A right answer pays 1, a wrong one -1 and often ends the episode.

    Of a Box what is said is a number in [-2, 2], of which the sign counts, or rather how far it is to that side.
    """

    draws, limit = 1, 6
    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, seeds: Sequence[int], count: int, purpose: str, boxes: bool) -> None:
        super().__init__(seeds, count, purpose)
        self.boxes = boxes
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32) if boxes else spaces.Discrete(2)

    def start(self, uniform: np.ndarray) -> np.ndarray:
        return 2 * uniform - 1

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        said = actions[..., 0] / 2 if self.boxes else 2 * actions[..., 0] - 1
        reward = said * np.sign(states[..., 0])
        luck = self.luck(2)
        return 2 * luck[..., :1] - 1, reward, (reward < 0) & (luck[..., 1] < 0.5)

    def observe(self, states: np.ndarray) -> np.ndarray:
        return states.astype(np.float32)


class Side(ControlTask):
    """The choices, or the numbers."""

    id: ClassVar[str] = "data_toys:side"
    steps: ClassVar[int] = 1_000
    boxes: bool = False

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return SideArrays(seeds, count, purpose, self.boxes)


class Known(Side):
    """With somebody who knows the sign."""

    id: ClassVar[str] = "data_toys:known"
    boxes: bool = True

    def controller(self) -> Callable[[np.ndarray], np.ndarray]:
        return lambda seen: 1.8 * np.sign(seen.astype(np.float64))


side, known = Side(), Known()
