"""Learning from the steps that were just taken, at once and once: nothing is kept."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from etude.core.control import VectorEnvironment
from etude.core.errors import ConfigError
from etude.core.fields import Count, WholeNumber
from etude.core.method import Method
from etude.core.population import Population
from etude.core.replay_slots import ReplayExperience
from etude.core.sampling_slots import Drawing, Exploration, Horizon, Sampling
from etude.core.step_slots import StepReward
from etude.core.transitions import Transitions
from etude.experience.replay import ReplayCollector
from etude.experience.sampling import OneStep
from etude.experience.store import Store
from etude.policies.control.actor import Actor


class Latest(ReplayExperience):
    """T transitions of each environment: after every T steps an update learns from them, then they are forgotten.

    There is no buffer, no warm-up and no batch but the environments of a member; the population is the batch. What a
    policy does by chance (`exploration=sampled`) it learns from by the very random numbers that it acted with, one
    step at a time. With several steps and `horizon=n-step` each is worth the longest sum that they allow: up to the end
    of its episode, or of the T steps.

    Args:
        environments: E, side by side for each member; an update reads the T E steps that they just took.
        steps: T.
        ahead: steps after these that are waited for, since they say what was done next (`horizon=quintuple`).

    Shapes: observations [P, E, ...].

    >>> part = Latest(environments=2)
    >>> part.capacity, part.due(6, 8)
    (2, 1)
    >>> part = Latest(steps=5, ahead=1)
    >>> part.capacity, [part.due(n - 1, n) for n in (5, 6, 10, 11)]
    (6, [0, 1, 0, 1])
    """

    random: ClassVar[int] = 0
    on_disk: ClassVar[bool] = False
    steps: Count = 1
    ahead: WholeNumber = 0

    @property
    def capacity(self) -> int:
        """Transitions of a member that are kept: until they were learned from."""
        return self.environments * (self.steps + self.ahead)

    def objection(self, method: Method) -> str | None:
        sampling = method.slots()["sampling"]
        if sampling is None:
            return None
        if not sampling.newest:
            return f"keeps nothing that {type(sampling).__name__} could draw from: set sampling=newest."
        if sampling.horizon.length > self.steps:
            return (
                f"has {self.steps} steps of an environment, and the horizon is {sampling.horizon.length}: set "
                "sampling.horizon=one-step, or raise experience.steps."
            )
        if sampling.horizon.beyond != self.ahead:
            return (
                f"keeps {self.ahead} steps after those that are learned from, and {sampling.horizon.name} reads "
                f"{sampling.horizon.beyond} of them: set experience.ahead={sampling.horizon.beyond}."
            )
        exploration = method.slots()["exploration"]
        noisy = exploration is not None and type(exploration).noise is not Exploration.noise
        if noisy and self.capacity > self.environments:
            return (
                f"keeps the random numbers of one step, by which {exploration.name} acted, and learns from {self.steps}"
                f" (experience.ahead={self.ahead}): set experience.steps=1."
            )
        return None

    def due(self, before: int, after: int) -> int:
        """Updates that are due once a member has `after` transitions, having had `before`."""
        return self._whole(after) - self._whole(before)

    def _whole(self, transitions: int) -> int:
        """How many times T steps were taken, and those after them."""
        return max(0, transitions // self.environments - self.ahead) // self.steps

    def collector(
        self, environment: VectorEnvironment, actor: Actor, population: Population, exploration: Exploration,
        rewards: tuple[StepReward, ...] = (),
    ) -> LatestCollector:  # fmt: skip
        """What acts, and holds what came of it until the next step. Raises ConfigError for images."""
        if len(shape := actor.shape) == 3:
            raise ConfigError(
                f"{type(self).__name__} learns from vectors, and observations are images {list(shape)}: flatten them, "
                "or set experience=replay."
            )
        return LatestCollector(self, environment, actor, population, exploration, rewards)


class LatestCollector(ReplayCollector):
    """Acts in a population's environments, each step in the place of the oldest.

    Of a step whose environment failed nothing is learned: the member learns once more from the step before, as the
    last of its episode; where several are kept, from another one in the place of each of the episode's. What came
    earlier in that episode has been learned from.
    """

    def step(self) -> None:
        self.before, self.noise_before = self.store.rows.clone(), self.store.noise
        super().step()

    def _act(self, shown: Tensor) -> Tensor:
        actions = super()._act(shown)
        noise = self.exploration.noise(self.actor, shown.shape[1], self.stretches)
        self.store.noise = None if noise is None else noise.clone()
        return actions

    def state(self) -> dict[str, Any]:
        kept = {} if self.store.noise is None else {"noise": self.store.noise}
        return {**super().state(), **kept}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.store.noise = state.get("noise")

    def _take_out(self, member: int, last: int, length: int) -> None:
        if self.store.capacity > self.store.environments:
            super()._take_out(member, last, length)
            for row in self.lost[member]:  # there was no other: nothing happened
                self._nothing(self.store.grid[member, row])
            self.lost[member] = []
            return
        own, before = self.store.grid[member, last], self.before.view_as(self.store.grid)[member, last]
        if self.taken > 1:
            own.copy_(before)
            if self.store.noise is not None and self.noise_before is not None:
                self.store.noise[member, last] = self.noise_before[member, last]
        else:
            self._nothing(own)
        own[-1] = 1.0

    def _nothing(self, row: Tensor) -> None:
        """Make a row one in which nothing happened."""
        d = self.store.widths[0]
        row[-3 - d : -3], row[-3], row[-2], row[-1] = row[:d], 0.0, 1.0, 1.0


class Newest(Sampling):
    """The steps that were just taken, T of each environment, for `experience=latest`.

    Shapes: rows [P, T E], the oldest first.

    >>> store = Store(members=1, environments=1, capacity=1, shape=(1,), actions=1)
    >>> for t in range(3):
    ...     one = torch.full((1, 1, 1), float(t))
    ...     store.push(one, one, one + 1, torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1, 1))
    >>> Newest().draw(store, None).observations.tolist()
    [[[2.0]]]
    """

    newest: ClassVar[bool] = True
    horizon: Horizon = OneStep()

    def objection(self, method: Method) -> str | None:
        experience = method.slots()["experience"]
        if experience is not None and not isinstance(experience, Latest):
            return (
                f"reads the steps that were just taken, and {type(experience).__name__} keeps more: set "
                "experience=latest or sampling=uniform-rows."
            )
        return None

    def draw(self, store: Store, draw: Drawing) -> Transitions:
        count = store.capacity - self.horizon.beyond * store.environments
        index = (store.oldest + torch.arange(count, device=store.device)) % store.capacity
        rows = self.horizon.read(store, index.expand(store.members, -1))
        return rows.replace(noise=store.noise)
