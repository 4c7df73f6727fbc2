"""Rollouts in vector environments: T steps in E environments of every member, as one batch of transitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.core.control import Step, VectorEnvironment
from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.part import Need
from etude.core.population import Population
from etude.core.step_slots import StepExperience
from etude.core.transitions import Transitions
from etude.experience.beginnings import Beginnings
from etude.policies.control.actor import Actor, Player
from etude.policies.control.memory import Past

Value = Callable[[Tensor], Tensor]
Worth = Callable[[np.ndarray, Past], Tensor]
FINAL_ROWS = 16
"""Last observations of episodes are valued in blocks of this many, so that no member's depend on the others' count."""


class Rollouts(StepExperience):
    """Fresh steps of the current policy.

    Args:
        environments: E, run side by side for each member.
        steps: T, in each environment between two updates.

    Shapes: Transitions [P, T, E], so every member learns from T E steps at a time:

    >>> part = Rollouts(environments=4, steps=128)
    >>> part.environments * part.steps
    512
    """

    def collector(
        self, environment: VectorEnvironment, actor: Actor, population: Population, needs: frozenset[Need], shared: bool
    ) -> RolloutCollector:
        return RolloutCollector(environment, actor, population, self.steps, needs, shared)


class Segments(Rollouts):
    """Rollouts of a few steps, many of them in a training step of the run.

    Args:
        environments: E, run side by side for each member. steps: T, the most that a return looks ahead.
        updates: rollouts, each learned from at once, between two lines of the log, where the run may be stopped. Their
            number changes no number that is learned.

    Shapes: Transitions [P, T, E].

    >>> part = Segments(steps=5, updates=50)
    >>> part.environments * part.steps * part.updates
    250
    """

    environments: Count = 1
    steps: Count = 5
    updates: Count = 50  # type: ignore[misc]  # of the part, where it is the class's in others


class RolloutCollector:
    """Acts in the environments with the current policy for T steps; see `etude.core.control.Collector`.

    Environments are on the CPU. A policy elsewhere is given its observations and says its actions once a step; all else
    that the environments say goes there once a rollout, as its random numbers do.

    Args:
        needs: NEXT_OBSERVATIONS, COSTS and PROGRESS are kept where they are among them.
        shared: whether the critic reads the policy's features instead of what the policy sees.
    """

    def __init__(
        self, environment: VectorEnvironment, actor: Actor, population: Population, steps: int,
        needs: frozenset[Need] = frozenset(), shared: bool = False,
    ) -> None:  # fmt: skip
        self.environment, self.actor, self.population, self.steps = environment, actor, population, steps
        self.needs, self.shared = needs, shared
        self.observations = environment.reset()
        grid = self.observations.shape[:2]
        self.player = Player(actor, population.size, grid[1])
        self.returns, self.lengths = np.zeros(grid), np.zeros(grid, np.int64)
        self.beginnings = Beginnings(self.observations)
        self.begun = np.zeros(grid, np.int64)  # when in this rollout the running episode began
        self.ended: list[tuple[int, float, int]] = []
        self.faults = 0

    def follow(self, needs: frozenset[Need], shared: bool) -> None:
        self.needs, self.shared = needs, shared

    @torch.no_grad()
    def collect(self, number: int, critic: Value | None) -> Transitions:
        """Rollout `number`; `critic` maps what is seen, or the policy's features, [P, N, ...] to values [P, N]."""
        batch, finals, device = self._empty(), _Finals(self.population), self.actor.device
        space, read, distributions = self.actor.distribution, [], []
        noise = self.population.draw("actions", number, of=lambda g: space.noise(batch.rewards.shape[1:], g))
        self.ended, self.faults = [], 0
        self.begun[:] = 0
        rewards, taken = batch.rewards.numpy(), batch.actions.numpy()
        for t, (shown, chance) in enumerate(zip(batch.observations.unbind(1), noise.to(device).unbind(1))):
            if batch.memory is not None and batch.begins is not None:
                batch.memory[:, t] = self.player.memory.view_as(batch.memory[:, t])
                batch.begins[:, t] = self.player.begins.view_as(batch.begins[:, t])
            shown.copy_(torch.from_numpy(self.observations))
            seen = self.actor.see(shown)
            features = self.player.features(seen)
            parameters = self.actor.say(features, self.actor.allowed(shown))
            actions = space.sample(parameters, chance).cpu().numpy()
            step = self.environment.step(actions)
            read.append(features if self.shared else seen)
            distributions.append(parameters)
            taken[:, t], rewards[:, t] = actions, step.rewards
            self.observations = step.observations
            self._keep(batch, step, t)
            self.returns += step.rewards
            self.lengths += 1
            if step.final is not None:
                self.beginnings.ended(step)
                self._end(batch, step, t, finals)
        batch = batch.to(device)
        batch.behaviour = torch.stack(distributions, 1)
        flat = space.logp(batch.behaviour.flatten(1, 2), batch.actions.flatten(1, 2))
        batch.behaviour_logp = flat.view_as(batch.rewards)
        if batch.discounts is not None:
            batch.discounts.copy_(~batch.terminated)
        if critic is not None:
            self._value(batch, torch.cat(read, 1), critic, finals)
        if batch.weights is not None:
            _overwrite(batch, batch.weights == 0)
        return batch

    def _empty(self) -> Transitions:
        space, shape = self.actor.distribution, (self.population.size, self.steps, self.observations.shape[1])
        dtype = torch.uint8 if self.observations.dtype == np.uint8 else torch.float32
        observations, device = torch.empty(*shape, *self.observations.shape[2:], dtype=dtype), self.actor.device
        follows, remembers = Need.NEXT_OBSERVATIONS in self.needs, self.actor.memory is not None
        return Transitions(
            observations.to(device), torch.empty(*shape, space.actions),
            rewards=torch.empty(shape), terminated=torch.zeros(shape, dtype=torch.bool),
            truncated=torch.zeros(shape, dtype=torch.bool), behaviour=torch.empty(*shape, space.parameters),
            behaviour_logp=torch.empty(shape), values=torch.zeros(shape), next_values=torch.zeros(shape),
            next_observations=torch.empty_like(observations) if follows else None,
            discounts=torch.empty(shape) if follows else None,
            costs=torch.empty(shape) if Need.COSTS in self.needs else None,
            progress=torch.empty(shape) if Need.PROGRESS in self.needs else None,
            memory=torch.empty(*shape, self.player.memory.shape[-1], device=device) if remembers else None,
            begins=torch.empty(shape, dtype=torch.bool, device=device) if remembers else None,  # both before each step
        )  # fmt: skip

    def _keep(self, batch: Transitions, step: Step, t: int) -> None:
        """What only some methods need of a step; where episodes ended, `_end` puts what they ended with."""
        if batch.next_observations is not None:
            batch.next_observations[:, t] = torch.from_numpy(step.observations)
        if batch.costs is not None:
            if step.costs is None:
                raise ConfigError(
                    "The method needs costs, and the environment says none: its steps must return an info with 'cost'. "
                    "Take an environment that does, or leave out the parts that need them."
                )
            batch.costs[:, t] = torch.from_numpy(step.costs)
        if batch.progress is not None:
            if step.progress is None:
                raise ConfigError(
                    "The method pays for sub-goals, and the environment has none: its steps must return an info with "
                    "'subgoal_progress'. Take a task that has sub-goals, as minigrid-subgoals, or leave out what needs "
                    "them."
                )
            batch.progress[:, t] = torch.from_numpy(step.progress)

    def _end(self, batch: Transitions, step: Step, t: int, finals: _Finals) -> None:
        """Note the episodes that ended; those whose environment failed count for nothing."""
        assert step.final is not None
        done = step.terminated | step.truncated
        self.player.ended(torch.from_numpy(done))
        batch.terminated[:, t] = torch.from_numpy(step.terminated)
        batch.truncated[:, t] = torch.from_numpy(step.truncated)
        faulty = np.zeros_like(step.terminated) if step.faulty is None else step.faulty
        if batch.next_observations is not None:
            batch.next_observations[:, t][torch.from_numpy(done)] = torch.from_numpy(step.final)
        for (m, e), last in zip(np.argwhere(done), step.final, strict=True):
            if faulty[m, e]:
                if batch.weights is None:
                    batch.weights = torch.ones_like(batch.rewards)
                batch.weights[m, self.begun[m, e] : t + 1, e] = 0
                self.faults += 1
            else:
                self.ended.append((int(m), float(self.returns[m, e]), int(self.lengths[m, e])))
                if not step.terminated[m, e]:
                    finals.add(int(m), _Final(t, int(e), last.copy(), self.player.memory[m, e]))
            self.returns[m, e], self.lengths[m, e], self.begun[m, e] = 0.0, 0, t + 1

    def _value(self, batch: Transitions, read: Tensor, critic: Value, finals: _Finals) -> None:
        """Fill in V(s_t) and V(s_{t+1}); `read` [P, T * E, ...] is what the critic reads of every s_t."""

        def worth(observations: np.ndarray, past: Past) -> Tensor:
            seen = self.actor.see(torch.from_numpy(observations).to(self.actor.device))
            return critic(self.actor.features(seen, past)[0] if self.shared else seen)

        batch.values = critic(read).view_as(batch.rewards)
        batch.next_values[:, :-1] = batch.values[:, 1:]
        batch.next_values[:, -1] = worth(self.observations, Past(self.player.memory, self.player.begins))
        finals.fill(batch.next_values, worth)
        batch.next_values.masked_fill_(batch.terminated, 0.0)  # nothing follows, least of all the next episode

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """Where every environment and episode stands, and what the policy remembers of it."""
        return {
            "environment": self.environment.state(),
            "observations": torch.from_numpy(self.observations.copy()),
            "returns": torch.from_numpy(self.returns.copy()),
            "lengths": torch.from_numpy(self.lengths.copy()),
            "memory": self.player.memory,
            "begins": self.player.begins,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Undo `state`."""
        self.environment.restore(state["environment"])
        self.observations, self.returns, self.lengths = (
            state[name].cpu().numpy().copy() for name in ("observations", "returns", "lengths")
        )
        self.player.memory, self.player.begins = state["memory"].clone(), state["begins"].clone()
        self.beginnings.forget()


def _overwrite(batch: Transitions, lost: Tensor) -> None:
    """Put a step of the same member that counts in the place of every one that does not, `lost` [P, T, E].

    So no number of a discarded episode reaches anything, not even as 0 times infinity. Where nothing counts, 0 stands.
    """
    everything, first = lost.flatten(1).all(1), lost.flatten(1).int().argmin(1)
    members = lost.nonzero()[:, 0]
    names = (
        "observations", "actions", "rewards", "behaviour", "behaviour_logp", "values", "next_values",
        "next_observations", "discounts", "costs", "progress", "memory",
    )  # fmt: skip
    for values in (x for name in names if (x := getattr(batch, name)) is not None):
        rows = values.flatten(1, 2)[torch.arange(len(first), device=first.device), first]
        rows[everything] = 0
        values[lost] = rows[members]


@dataclass
class _Final:
    """The last observation of an episode truncated at step t in environment e, and what was remembered by then."""

    t: int
    e: int
    observation: np.ndarray
    memory: Tensor


class _Finals:
    """Last observations of episodes that were truncated, and where they belong."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.episodes: list[list[_Final]] = [[] for _ in range(population.size)]

    def add(self, member: int, final: _Final) -> None:
        self.episodes[member].append(final)

    def fill(self, next_values: Tensor, worth: Worth) -> None:
        """Write V of each into `next_values` [P, T, E]."""
        for start in range(0, max(map(len, self.episodes)), FINAL_ROWS):
            block = [each[start : start + FINAL_ROWS] for each in self.episodes]
            example = next(each[0] for each in block if each)
            rows = np.zeros((self.population.size, FINAL_ROWS, *example.observation.shape), example.observation.dtype)
            memory = example.memory.new_zeros(self.population.size, FINAL_ROWS, len(example.memory))
            for m, each in enumerate(block):
                for i, final in enumerate(each):
                    rows[m, i], memory[m, i] = final.observation, final.memory
            begins = memory.new_zeros(self.population.size, 1, FINAL_ROWS, dtype=torch.bool)
            values = worth(rows, Past(memory, begins))
            places = [(m, i, final.t, final.e) for m, each in enumerate(block) for i, final in enumerate(each)]
            members, columns, times, environments = torch.tensor(places, device=values.device).unbind(1)
            next_values[members, times, environments] = values[members, columns]
