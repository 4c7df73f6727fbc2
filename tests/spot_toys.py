"""Tasks whose observations are small images, and methods that learn on them: what tests of several rooms share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from etude.core.control import ControlTask, VectorEnvironment
from etude.learners.encoder import CriticEncoder
from etude.policies.control.frames import FrameStack
from etude.policies.control.networks import CNN
from etude.policies.control.replay import FromCritic
from etude.tasks.control._batched import ArrayEnvironment
from replay_toys import REPLAY, small

SIDE = 6
TINY = CNN(channels=(4,), kernels=(3,), strides=(2,), hidden=(8,))


class SpotArrays(ArrayEnvironment):
    """A bright spot on a row of an image, somewhere else after every step; who points at its side is paid.

    States [M, E, 2]: the column of the spot, and a number that says where it goes.
    """

    draws, limit = 2, 7
    observation_space: Any = spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)

    def __init__(self, seeds: Sequence[int], count: int, purpose: str, boxes: bool) -> None:
        super().__init__(seeds, count, purpose)
        self.boxes = boxes
        self.action_space = spaces.Box(-1.0, 1.0, (1,)) if boxes else spaces.Discrete(2)

    def start(self, uniform: np.ndarray) -> np.ndarray:
        return np.stack([np.floor(uniform[..., 0] * SIDE), np.floor(uniform[..., 1] * 1000)], -1)

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        column, number = states[..., 0], states[..., 1]
        side = np.where(column >= SIDE / 2, 1.0, -1.0)
        pointed = actions[..., 0] if self.boxes else 2 * actions[..., 0] - 1
        rewards = 1 - np.abs(pointed - side) / 2
        number = (number * 37 + 11) % 1009
        return np.stack([number % SIDE, number], -1), rewards, number % 9 == 0

    def observe(self, states: np.ndarray) -> np.ndarray:
        columns = np.arange(SIDE) == states[..., :1]
        rows = np.zeros((*states.shape[:2], SIDE, SIDE), np.uint8) if states.ndim == 3 else np.zeros(
            (len(states), SIDE, SIDE), np.uint8
        )  # fmt: skip
        rows += (columns[..., None, :] * (100 + states[..., 1:, None] % 150)).astype(np.uint8)
        return rows[..., None, :, :]


class SpotTask(ControlTask):
    """The task of the spot, whose actions are numbers or choices."""

    boxes: bool = False
    id: ClassVar[str] = "spot"
    steps: ClassVar[int] = 500

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return SpotArrays(seeds, count, purpose, self.boxes)


def seeing(stacked: int = 1, **experience: Any) -> Any:
    """dqn whose critic sees images, of so many frames."""
    found = small(REPLAY["dqn"], **experience)
    return found.replace(
        critic=found.critic.replace(network=TINY), policy=FromCritic(observations=(FrameStack(count=stacked),))
    )


def encoded(name: str, *rest: Any, **encoder: Any) -> Any:
    """A method behind an encoder that learns by the critic's loss, in one group with the critic."""
    found = small(REPLAY[name])
    own = CriticEncoder(network=TINY, **encoder)
    return found.replace(learners=(*found.learners, own), order=(("critic", "critic-encoder"), *rest))
