"""How much of an episode has passed, shown beside what the environment shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from torch import nn

from etude.core.control import Step, VectorEnvironment
from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.population import Population
from etude.core.step_slots import Observations
from etude.policies.control.frames import FrameStack

if TYPE_CHECKING:
    from etude.core.method import Method


class TimeFeature(Observations):
    """One number more at the end of vectors: t / limit - 1/2 after t steps of the episode (arXiv:1712.00378).

    With it a state says how much is left until a time limit, so that the limit may count as an end
    (`sampling.horizon=time-aware`). An exported policy is given it too, as the last number of its observations.

    Args:
        limit: steps after which episodes are cut; the number is 1/2 there.

    Shapes: observations [M, E, D] -> [M, E, D + 1].

    Raises: ConfigError unless observations are one vector.

    >>> from etude.tasks.control.cartpole import CartPole
    >>> TimeFeature(limit=500).watch(CartPole().make([0], 1)).reset()[0, 0, -1]
    np.float32(-0.5)
    """

    limit: Count = 1000

    def objection(self, method: Method) -> str | None:
        parts = getattr(method.slots().get("policy"), "observations", ())
        if any(isinstance(part, FrameStack) for part in parts):
            return "says the time of one observation, and FrameStack shows several: leave one of them out."
        return None

    def build(self, shape: tuple[int, ...], population: Population) -> tuple[nn.Module, tuple[int, ...]]:
        return nn.Identity(), shape

    def watch(self, environment: VectorEnvironment) -> VectorEnvironment:
        return Timed(environment, self.limit)


class Timed:
    """Environments that show the time too: [M, E, D + 1] of [M, E, D]."""

    def __init__(self, environment: VectorEnvironment, limit: int) -> None:
        self.environment, self.limit, self.action_space = environment, limit, environment.action_space
        space = environment.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1 or space.dtype == np.uint8:
            raise ConfigError(
                f"TimeFeature adds a number to vectors, and observations are {space}: leave it out of "
                "policy.observations."
            )
        low, high = np.append(space.low, -0.5), np.append(space.high, np.inf)
        self.observation_space = spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)
        self.steps: np.ndarray = np.zeros(0)

    def _beside(self, observations: np.ndarray, steps: np.ndarray) -> np.ndarray:
        time = (steps / self.limit - 0.5).astype(observations.dtype)
        return np.concatenate([observations, time[..., None]], -1)

    def reset(self) -> np.ndarray:
        observations = self.environment.reset()
        self.steps = np.zeros(observations.shape[:2])
        return self._beside(observations, self.steps)

    def step(self, actions: np.ndarray) -> Step:
        step = self.environment.step(actions)
        passed, done, final = self.steps + 1, step.terminated | step.truncated, step.final
        if final is not None:
            final = self._beside(final, passed[done])
        self.steps = np.where(done, 0.0, passed)
        return dataclasses.replace(step, observations=self._beside(step.observations, self.steps), final=final)

    def state(self) -> dict[str, Any]:
        return {"environment": self.environment.state(), "steps": self.steps.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.environment.restore(state["environment"])
        self.steps = state["steps"].copy()

    def close(self) -> None:
        self.environment.close()
