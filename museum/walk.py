"""A walk in one dimension, and what may be amiss with it; it imports nothing of etude, so that peers walk it too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np

LIMIT = 60
"""Steps after which a walk is truncated."""


class Walk(gym.Env[np.ndarray, np.int64]):
    """A step to the left or to the right with some noise, until it is 1 away from the middle."""

    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.begin()
        self.steps = 0
        return self.seen(), {}

    def begin(self) -> None:
        """Where an episode starts."""
        self.place = self.np_random.uniform(-0.3, 0.3)

    def seen(self) -> np.ndarray:
        """What is observed."""
        return np.array([self.place, self.place**2], np.float32)

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        pushed = self.place + (2 * int(action) - 1) * 0.2 + self.np_random.normal(0, 0.05)
        self.place = float(np.clip(pushed, -3, 3))
        self.steps += 1
        return self.seen(), -abs(self.place), *self.ends(), {}

    def ends(self) -> tuple[bool, bool]:
        """Whether it is over, and whether time is."""
        return bool(abs(self.place) > 1), self.steps >= LIMIT


def _same_array(self: Walk) -> np.ndarray:
    if not hasattr(self, "buffer"):
        self.buffer = np.zeros(2, np.float32)
    self.buffer[:] = self.place, self.place**2
    return self.buffer


def _own_start(self: Walk) -> None:
    self.place = np.random.default_rng(42).uniform(-0.3, 0.3)
    self.np_random = np.random.default_rng(42)


def _never(self: Walk) -> tuple[bool, bool]:
    return False, False


def _limit_is_an_end(self: Walk) -> tuple[bool, bool]:
    self.place = float(np.clip(self.place, -0.9, 0.9))
    return self.steps >= LIMIT, False


def _nan(self: Walk) -> np.ndarray:
    return np.array([self.place, np.log(self.place + 0.3) if self.place < -0.3 else 0.0], np.float32)


def _global_start(self: Walk) -> None:
    self.place = np.random.uniform(-0.3, 0.3)


_reset, _step = Walk.reset, Walk.step


def _seeded_for_all(self: Walk, *, seed: int | None = None, options: Any = None) -> Any:
    if seed is not None:
        np.random.seed(seed)
    return _reset(self, seed=seed, options=options)


def _drawn_from_all(self: Walk, action: np.int64) -> Any:
    self.place += np.random.normal(0, 0.05)
    return _step(self, action)


@contextmanager
def random_for_all(**faulty: Any) -> Iterator[None]:
    """The walk draws from the generator that the whole process has, whose state comes back afterwards."""
    before = np.random.get_state()
    try:
        with mock.patch.multiple(Walk, **faulty):
            yield
    finally:
        np.random.set_state(before)


def instead(name: str, faulty: Any) -> Callable[[], Any]:
    """The walk with another method."""
    return lambda: mock.patch.object(Walk, name, faulty)


FAULTS: dict[str, Callable[[], Any]] = {
    "observation-buffer-reused": instead("seen", _same_array),
    "seed-ignored": instead("begin", _own_start),
    "seed-of-another-generator": lambda: random_for_all(begin=_global_start),
    "one-generator-for-all": lambda: random_for_all(begin=_global_start, reset=_seeded_for_all, step=_drawn_from_all),
    "episodes-without-end": instead("ends", _never),
    "nan-observation": instead("seen", _nan),
    "time-limit-as-an-end": instead("ends", _limit_is_an_end),
}
"""What brings each fault of the walk back, by exhibit."""
