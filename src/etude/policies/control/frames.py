"""Observations of the last steps, stacked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from etude.core.control import Step, VectorEnvironment
from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.population import Population
from etude.core.step_slots import Observations
from etude.policies.control.leaves import Leaves

if TYPE_CHECKING:
    from etude.core.method import Method


class FrameStack(Observations):
    """The last `count` observations of the episode side by side, the oldest first (doi:10.1038/nature14236).

    Vectors [D] become [count D], images [C, H, W] become [count C, H, W]. At the start of an episode the first
    observation stands in for those before it. It comes before all other observation parts, so that these see stacks.

    >>> from etude.core.population import Member
    >>> [FrameStack(count=4).build(shape, Population([Member(0)]))[1] for shape in ((3,), (1, 84, 84))]
    [(12,), (4, 84, 84)]
    """

    count: Count = 4

    def build(self, shape: tuple[int, ...], population: Population) -> tuple[nn.Module, tuple[int, ...]]:
        stacked = (self.count * shape[0], *shape[1:])
        if not isinstance(shape, Leaves):
            return nn.Identity(), stacked
        if not shape.lone:
            raise ConfigError(
                "FrameStack stacks a vector or an image, and observations have several leaves: let the policy remember "
                "them (--set policy.memory=gru), or stack one of them in the environment."
            )
        return nn.Identity(), Leaves([dataclasses.replace(shape.leaves[0], shape=stacked)])

    def watch(self, environment: VectorEnvironment) -> VectorEnvironment:
        return Stacked(environment, self.count)

    def objection(self, method: Method) -> str | None:
        parts = getattr(method.slots().get("policy"), "observations", ())
        if any(isinstance(part, FrameStack) for part in parts[1:]):
            return "stacks what the environment shows: put it first in policy.observations, and once."
        return None


class Stacked:
    """Environments whose observations are stacks: [M, E, count C, ...] of [M, E, C, ...]."""

    def __init__(self, environment: VectorEnvironment, count: int) -> None:
        self.environment, self.count = environment, count
        self.observation_space, self.action_space = environment.observation_space, environment.action_space
        self.frames: np.ndarray = np.zeros(0)

    def _repeated(self, observations: np.ndarray, axis: int) -> np.ndarray:
        return np.concatenate([observations] * self.count, axis)

    def reset(self) -> np.ndarray:
        self.frames = self._repeated(self.environment.reset(), 2)
        return self.frames

    def step(self, actions: np.ndarray) -> Step:
        step, size = self.environment.step(actions), self.frames.shape[2] // self.count
        before, done, final = self.frames[:, :, size:], step.terminated | step.truncated, step.final
        self.frames = np.concatenate([before, step.observations], 2)
        if final is not None:
            self.frames[done] = self._repeated(step.observations[done], 1)
            final = np.concatenate([before[done], final], 1)
        return dataclasses.replace(step, observations=self.frames, final=final)

    def state(self) -> dict[str, Any]:
        return {"environment": self.environment.state(), "frames": self.frames.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.environment.restore(state["environment"])
        self.frames = state["frames"].copy()

    def close(self) -> None:
        self.environment.close()
