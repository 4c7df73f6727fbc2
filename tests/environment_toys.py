"""Environments whose every number is known, and the same with one fault each."""

from __future__ import annotations

import os
import time
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

TOYS = f"{Path(__file__)}:Toy"
"""As `--task` takes it; `task.arguments` chooses the fault."""
BOX = spaces.Box(-1e6, 1e6, (3,), np.float32)


class Toy(gym.Env):
    """Observations [a number that the seed decides, steps since reset, last action]; the reward is the step's number.

    Args:
        fault: what is wrong, from the step `at` of an episode on.
        length, limit: steps after which an episode is terminated, truncated.
        file: counts in this file how often something happened, across processes.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    shared = 0.0

    def __init__(self, fault: str = "", at: int = 5, length: int = 20, limit: int = 10**9, file: str = "") -> None:
        self.fault, self.at, self.length, self.limit, self.file = fault, at, length, limit, file
        self.observation_space, self.action_space = BOX, spaces.Discrete(3)
        if fault == "text":
            self.observation_space = spaces.Dict(said=spaces.Text(5), seen=BOX)
        if fault == "integers":
            self.action_space = spaces.Box(0, 9, (2,), np.int64)
        if fault == "far actions":
            self.action_space = spaces.Box(100.0, 200.0, (1,))
        if fault == "no space":
            self.action_space = 3
        if fault == "constructor":
            raise ValueError("no licence")
        self.episodes, self.buffer = 0, np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.start, self.elapsed, self.action = float(self.np_random.random()), 0, 0.0
        self.episodes += 1
        if self.fault == "global random":
            self.start = float(np.random.random())
        if self.fault == "leak":
            self.start += self.episodes
        if self.fault == "shared":
            Toy.shared += 1
            self.start += Toy.shared
        if self.fault == "reset raises":
            raise RuntimeError("cannot begin")
        if self.fault == "reset only":
            return self._see()
        if self.fault == "same start":
            self.start = 0.5
        return self._see(), (None if self.fault == "reset info" else {})

    def step(self, action: Any) -> Any:
        self.elapsed += 1
        self.action = float(np.sum(action))
        terminated, truncated = self.elapsed >= self.length, self.elapsed >= self.limit
        if self.elapsed >= self.at and self.fault in FAULTS:
            found = FAULTS[self.fault](self)
            if found is not None:
                return found
        return self._see(), float(self.elapsed), terminated, truncated and not terminated, {}

    def _see(self) -> Any:
        self.buffer[:] = self.start, self.elapsed, self.action
        if self.fault == "text":
            return {"said": "", "seen": self.buffer.copy()}
        return self.buffer if self.fault == "in place" else self.buffer.copy()

    def once(self) -> bool:
        """Whether this is the first time, in any process."""
        try:
            Path(self.file).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def answer(toy: Toy, observation: Any = None, reward: Any = 0.0, terminated: Any = False, info: Any = None) -> Any:
    """A step with one thing replaced."""
    seen = toy._see() if observation is None else observation
    return seen, reward, terminated, False, {} if info is None else info


def _raise(toy: Toy) -> None:
    raise ZeroDivisionError("the valve is stuck")


FAULTS: dict[str, Any] = {
    "raises": _raise,
    "raises once": lambda toy: _raise(toy) if toy.once() else None,
    "exits": lambda toy: exit(3),
    "dies": lambda toy: os._exit(4),
    "dies once": lambda toy: os._exit(4) if toy.once() else None,
    "hangs": lambda toy: time.sleep(100),
    "hangs once": lambda toy: time.sleep(100) if toy.once() else None,
    "nan observation": lambda toy: answer(toy, np.array([0, np.nan, 0], np.float32)),
    "infinite observation": lambda toy: answer(toy, np.array([0, 0, np.inf], np.float32)),
    "outside": lambda toy: answer(toy, np.array([0, 2e6, 0], np.float32)),
    "shape": lambda toy: answer(toy, np.zeros(4, np.float32)),
    "dtype": lambda toy: answer(toy, np.zeros(3, np.float64)),
    "list": lambda toy: answer(toy, [0.0, 0.0, 0.0]),
    "nan reward": lambda toy: answer(toy, reward=float("nan")),
    "large reward": lambda toy: answer(toy, reward=1e300),
    "array reward": lambda toy: answer(toy, reward=np.zeros(1)),
    "no reward": lambda toy: answer(toy, reward=None),
    "number as flag": lambda toy: answer(toy, terminated=1),
    "info": lambda toy: answer(toy, info=[1]),
    "four values": lambda toy: (toy._see(), 0.0, False, {}),
    "clock": lambda toy: answer(toy, np.array([0, time.perf_counter() % 1, 0], np.float32), terminated=toy.elapsed > 9),
    "both": lambda toy: (toy._see(), 0.0, True, True, {}) if toy.elapsed > 9 + toy.start * 9 else None,
}


class NoSeed(Toy):
    """Of the old gym."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


def toy() -> gym.Env:
    """A function that makes one."""
    return Toy()


def not_one() -> int:
    """A function that makes none."""
    return 3


class Nested(gym.Env):
    """Every kind of space inside of Dict and Tuple, in observations and actions; the reward says what action came."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    observation_space = spaces.Dict(
        {
            "arm": spaces.Tuple((spaces.Box(-1, 1, (2, 2)), spaces.Discrete(4, start=2))),
            "keys": spaces.MultiBinary(3),
            "dials": spaces.MultiDiscrete([2, 3]),
            "eye": spaces.Box(0, 255, (3, 2, 2), np.uint8),
        }
    )
    action_space = spaces.Dict(
        {"move": spaces.Box(-2, 2, (2,)), "pick": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2)))}
    )

    def __init__(self) -> None:
        self.observation_space = deepcopy(Nested.observation_space)  # it draws the observations

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.elapsed = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.elapsed += 1
        pick, keys = action["pick"]
        reward = float(action["move"].sum()) + 10 * int(pick) + 100 * int(keys.sum())
        return self.observation_space.sample(), reward, self.elapsed >= 7, False, {}
