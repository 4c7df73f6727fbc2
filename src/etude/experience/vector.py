"""Rollouts in vector environments: T steps in E environments of every member, as one batch of transitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from etude.core.batches import Transitions
from etude.core.control import Step, VectorEnvironment
from etude.core.fields import Count
from etude.core.slots import Experience
from etude.policies.control.actor import Actor
from etude.policies.control.population import Population

Value = Callable[[Tensor], Tensor]
FINAL_ROWS = 16
"""Last observations of episodes are valued in blocks of this many, so that no member's depend on the others' count."""


class Rollouts(Experience):
    """Fresh steps of the current policy.

    Args:
        environments: E, run side by side for each member.
        steps: T, in each environment between two updates.
    """

    serves: ClassVar[frozenset[str]] = frozenset({"control"})
    environments: Count = 4
    steps: Count = 128


class Collector:
    """Acts in the environments with the current policy; remembers where every episode stands.

    `ended` lists the episodes that ended in the last rollout: member, return, length. Failed ones are not among them.
    """

    def __init__(self, environment: VectorEnvironment, actor: Actor, population: Population, steps: int) -> None:
        self.environment, self.actor, self.population, self.steps = environment, actor, population, steps
        self.observations = environment.reset()
        grid = self.observations.shape[:2]
        self.returns, self.lengths = np.zeros(grid), np.zeros(grid, np.int64)
        self.begun = np.zeros(grid, np.int64)  # when in this rollout the running episode began
        self.ended: list[tuple[int, float, int]] = []
        self.faults = 0

    @torch.no_grad()
    def collect(self, number: int, value: Value | None) -> Transitions:
        """Rollout `number`; `value` maps what is seen [P, N, ...] to values [P, N]."""
        batch, finals = self._empty(), _Finals(self.population)
        space, grid = self.actor.distribution, self.observations.shape[1]
        noise = self.population.draw("actions", number, of=lambda g: space.noise((self.steps, grid), g))
        self.ended, self.faults = [], 0
        self.begun[:] = 0
        for t in range(self.steps):
            seen = batch.observations[:, t].copy_(torch.from_numpy(self.observations))
            parameters = batch.behaviour[:, t].copy_(self.actor(self.actor.see(seen)))
            action = batch.actions[:, t].copy_(space.sample(parameters, noise[:, t]))
            step = self.environment.step(action[: self.population.real].numpy())
            batch.rewards[:, t] = torch.from_numpy(step.rewards)
            self.observations = step.observations
            self.returns += step.rewards
            self.lengths += 1
            if step.final is not None:
                self._end(batch, step, t, finals)
        batch.behaviour_logp = space.logp(batch.behaviour.flatten(1, 2), batch.actions.flatten(1, 2)).view_as(
            batch.rewards
        )
        if value is not None:
            self._value(batch, value, finals)
        return batch

    def _empty(self) -> Transitions:
        space, shape = self.actor.distribution, (self.population.size, self.steps, self.observations.shape[1])
        kind = torch.uint8 if self.observations.dtype == np.uint8 else torch.float32
        return Transitions(
            torch.empty(*shape, *self.observations.shape[2:], dtype=kind), torch.empty(*shape, space.actions),
            rewards=torch.empty(shape), terminated=torch.zeros(shape, dtype=torch.bool),
            truncated=torch.zeros(shape, dtype=torch.bool), behaviour=torch.empty(*shape, space.parameters),
            behaviour_logp=torch.empty(shape), values=torch.zeros(shape), next_values=torch.zeros(shape),
        )  # fmt: skip

    def _end(self, batch: Transitions, step: Step, t: int, finals: _Finals) -> None:
        """Note the episodes that ended; those whose environment failed count for nothing."""
        assert step.final is not None
        batch.terminated[:, t] = torch.from_numpy(step.terminated)
        batch.truncated[:, t] = torch.from_numpy(step.truncated)
        faulty = np.zeros_like(step.terminated) if step.faulty is None else step.faulty
        for (m, e), last in zip(np.argwhere(step.terminated | step.truncated), step.final, strict=True):
            if faulty[m, e]:
                if batch.weights is None:
                    batch.weights = torch.ones_like(batch.rewards)
                batch.weights[self.population.rows(m), self.begun[m, e] : t + 1, e] = 0
                self.faults += 1
            else:
                self.ended.append((int(m), float(self.returns[m, e]), int(self.lengths[m, e])))
                if not step.terminated[m, e]:
                    finals.add(int(m), t, int(e), last)
            self.returns[m, e], self.lengths[m, e], self.begun[m, e] = 0.0, 0, t + 1

    def _value(self, batch: Transitions, value: Value, finals: _Finals) -> None:
        """Fill in V(s_t) and V(s_{t+1})."""
        see = self.actor.see
        batch.values = value(see(batch.observations.flatten(1, 2))).view_as(batch.rewards)
        batch.next_values[:, :-1] = batch.values[:, 1:]
        batch.next_values[:, -1] = value(see(self.population.pad(torch.from_numpy(self.observations))))
        finals.fill(batch.next_values, lambda x: value(see(x)))

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """Where every environment and episode stands."""
        return {
            "environment": self.environment.state(),
            "observations": torch.from_numpy(self.observations.copy()),
            "returns": torch.from_numpy(self.returns.copy()),
            "lengths": torch.from_numpy(self.lengths.copy()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Undo `state`."""
        self.environment.restore(state["environment"])
        self.observations = state["observations"].numpy().copy()
        self.returns, self.lengths = state["returns"].numpy().copy(), state["lengths"].numpy().copy()


class _Finals:
    """Last observations of episodes that were cut, and where they belong."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.found: list[list[tuple[int, int, np.ndarray]]] = [[] for _ in range(population.real)]

    def add(self, member: int, t: int, e: int, observation: np.ndarray) -> None:
        self.found[member].append((t, e, observation.copy()))

    def fill(self, next_values: Tensor, value: Value) -> None:
        """Write V of each into `next_values` [P, T, E]."""
        for start in range(0, max(map(len, self.found)), FINAL_ROWS):
            block = [each[start : start + FINAL_ROWS] for each in self.found]
            example = next(each[0][2] for each in block if each)
            rows = np.zeros((self.population.real, FINAL_ROWS, *example.shape), example.dtype)
            for m, each in enumerate(block):
                for i, (_, _, observation) in enumerate(each):
                    rows[m, i] = observation
            values = value(self.population.pad(torch.from_numpy(rows)))
            for m, each in enumerate(block):
                for i, (t, e, _) in enumerate(each):
                    next_values[self.population.rows(m), t, e] = values[m, i]
