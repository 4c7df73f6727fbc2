"""Built-in environments written over arrays: one step of all environments of all members is a few operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from etude.core.control import Step
from etude.core.streams import Stream
from etude.experience.episodes import check_fits


class ArrayEnvironment:
    """M x E environments whose state is one array [M, E, S].

    A subclass says how an episode begins, what a step does and what is observed. Starts are drawn from a counter:
    (member's seed, environment, episode) says all, so nothing depends on who else is there. What happens by chance
    within an episode, `luck`, is drawn from (member's seed, environment, episode, step).
    """

    observation_space: Any
    action_space: Any
    draws: ClassVar[int] = 1
    """Uniform numbers that the start of an episode needs."""
    limit: int = 200
    """Steps after which an episode is truncated."""

    def __init__(self, seeds: Sequence[int], count: int, purpose: str) -> None:
        streams = [[Stream(s).split("environment", purpose, e) for e in range(count)] for s in seeds]
        self.keys = np.array([[s.key for s in row] for row in streams], np.uint64)
        self.luck_keys = np.array([[s.split("luck").key for s in row] for row in streams], np.uint64)
        self.episode = np.zeros(self.keys.shape, np.int64)
        self.elapsed = np.zeros(self.keys.shape, np.int64)
        self.states = np.zeros((*self.keys.shape, 0))

    def start(self, uniform: np.ndarray) -> np.ndarray:
        """States [..., S] from uniform numbers [..., draws]."""
        raise NotImplementedError

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Next states [M, E, S], rewards and terminated [M, E] after actions [M, E, A]."""
        raise NotImplementedError

    def observe(self, states: np.ndarray) -> np.ndarray:
        """Observations [..., D] float32."""
        raise NotImplementedError

    def luck(self, count: int) -> np.ndarray:
        """[M, E, count] uniform numbers in [0, 1) of the step that is being taken; the same if asked for again."""
        return uniforms(self.luck_keys, self.episode * self.limit + self.elapsed, count)

    def reset(self) -> np.ndarray:
        self.states = self.start(uniforms(self.keys, self.episode, self.draws))
        return self.observe(self.states)

    def step(self, actions: np.ndarray) -> Step:
        self.states, rewards, terminated = self.advance(self.states, actions)
        self.elapsed += 1
        late = self.elapsed >= self.limit
        observations, done, truncated, final = self.observe(self.states), terminated | late, late, None
        if np.count_nonzero(done):
            truncated, final = late & ~terminated, observations[done]
            self.episode[done] += 1
            self.elapsed[done] = 0
            self.states[done] = self.start(uniforms(self.keys[done], self.episode[done], self.draws))
            observations[done] = self.observe(self.states[done])
        return Step(observations, rewards.astype(np.float32, copy=False), terminated, truncated, final)

    def state(self) -> dict[str, Any]:
        return {"states": self.states.copy(), "episode": self.episode.copy(), "elapsed": self.elapsed.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        check_fits(type(self).__name__, self.keys.shape, "built-in", {"observations": state.get("states"), **state})
        self.states, self.episode, self.elapsed = (state[k].copy() for k in ("states", "episode", "elapsed"))

    def close(self) -> None:
        pass


def uniforms(keys: np.ndarray, counter: np.ndarray, count: int) -> np.ndarray:
    """[..., count] numbers in [0, 1) that (key, counter) decides: SplitMix64 (doi:10.1145/2714064.2660195)."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    index = counter.astype(np.uint64)[..., None] * np.uint64(count) + np.arange(1, count + 1, dtype=np.uint64)
    z: np.ndarray = keys[..., None] + index * golden
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: np.ndarray = ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
    return found
