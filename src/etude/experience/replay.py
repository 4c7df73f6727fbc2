"""Learning from a replay: steps of the current policy are stored, and updates follow in a fixed measure."""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from etude.core.control import Step, VectorEnvironment
from etude.core.errors import ConfigError
from etude.core.fields import Count, Positive, WholeNumber
from etude.core.method import Method
from etude.core.population import PerMember, Population
from etude.core.replay_slots import ReplayExperience
from etude.core.sampling_slots import Drawing, Exploration, Sampling
from etude.core.step_slots import StepReward
from etude.core.transitions import Transitions
from etude.experience.beginnings import Beginnings
from etude.experience.images import ImageStore
from etude.experience.store import Store
from etude.experience.stretches import Stretches
from etude.policies.control.actor import Actor
from etude.policies.control.frames import Stacked
from etude.policies.control.noise import noisy
from etude.policies.control.units import in_units


class Replay(ReplayExperience):
    """A ring of transitions for each member, learned from while it fills.

    Args:
        environments: E, side by side for each member.
        capacity: transitions of a member that are kept.
        random: transitions at the start in which any action is as likely as another.
        warmup: transitions before the first update.
        every: transitions between two rounds of updates. updates: optimizer updates for each transition, above or
            below 1; a round makes `every` times as many.
        on_disk: whether what is kept lives in a file instead of memory, in TMPDIR or /var/tmp. It changes no number.

    Shapes: observations [P, E, ...].

    >>> part = Replay(warmup=100, every=4, updates=0.25)
    >>> part.round, part.due(99, 100), part.due(100, 104), part.due(100, 120)
    (1, 0, 1, 5)
    """

    capacity: Count = 1_000_000
    random: WholeNumber = 1_000
    warmup: WholeNumber = 1_000
    every: Count = 1
    updates: Positive = 1.0
    on_disk: bool = False

    @property
    def round(self) -> int:
        """Updates of a round."""
        return round(self.every * self.updates)

    def check(self) -> None:
        made = self.every * self.updates
        if self.round < 1 or abs(made - self.round) > 1e-6:
            raise ConfigError(
                f"Replay makes {self.updates:g} updates for each of every={self.every} transitions, {made:g} in a "
                "round: that must be a whole number of at least 1. Set every or updates."
            )
        if self.warmup > self.capacity:
            raise ConfigError(
                f"Replay keeps {self.capacity} transitions, and learns only after {self.warmup}: lower warmup or raise "
                "capacity."
            )
        if self.environments > self.capacity:
            raise ConfigError(f"Replay keeps {self.capacity} transitions and steps {self.environments} environments.")

    def objection(self, method: Method) -> str | None:
        slots = method.slots()
        learners = [part for part in (slots["critic"], *slots["learners"]) if part is not None]
        drawn = [slots["sampling"], *(part.sampling for part in learners)]
        horizons = [x.horizon if isinstance(x, Sampling) else x for x in drawn if x is not None]
        longest = max((horizon.length for horizon in horizons), default=1)
        if longest > self.capacity // self.environments:
            return (
                f"keeps {self.capacity // self.environments} steps of an environment, and the horizon is {longest}: "
                "raise experience.capacity."
            )
        rows: list[Any] = [x for x in drawn if isinstance(x, Sampling) and not x.newest]
        batch = max((x.batch for x in rows), default=1)
        if batch > max(self.warmup, 1) and self.warmup > 0:
            return (
                f"learns after {self.warmup} transitions, and a batch is {batch}: raise experience.warmup or lower "
                "sampling.batch."
            )
        return None

    def due(self, before: int, after: int) -> int:
        """Updates that are due once a member has `after` transitions, having had `before`."""
        start = max(before, self.warmup)
        return max(0, after // self.every - start // self.every) * self.round

    def collector(
        self, environment: VectorEnvironment, actor: Actor, population: Population, exploration: Exploration,
        rewards: tuple[StepReward, ...] = (),
    ) -> ReplayCollector:  # fmt: skip
        """What acts and stores. Raises ConfigError for updates that differ between members, who share each round."""
        if isinstance(self.updates, PerMember):
            raise ConfigError("experience.updates cannot differ between the members of one run: compare runs instead.")
        return ReplayCollector(self, environment, actor, population, exploration, rewards)


class Keeping(Protocol):
    """What a collector asks of its experience."""

    @property
    def capacity(self) -> int:
        """Transitions of a member that are kept."""
        ...

    @property
    def random(self) -> int:
        """Transitions at the start in which any action is as likely as another."""
        ...

    @property
    def on_disk(self) -> bool:
        """Whether they are kept in a file."""
        ...


class ReplayCollector:
    """Acts in a population's environments, one step at a time, and stores what happens.

    Environments are on the CPU. A policy elsewhere is given its observations and says its actions once a step.

    An episode whose environment failed is taken out: copies of another row of the same member stand in the place of
    its rows, so nothing of it is learned from afterwards, and no other member moves.
    """

    def __init__(
        self, part: Keeping, environment: VectorEnvironment, actor: Actor, population: Population,
        exploration: Exploration, rewards: tuple[StepReward, ...] = (),
    ) -> None:  # fmt: skip
        self.part, self.environment, self.actor = part, environment, actor
        self.exploration, self.rewards = exploration, rewards
        self.spread, self.learns = in_units(actor), len(actor.transforms) > 0  # from what is seen
        self.noisy = getattr(actor.body, "noise", None) is not None
        self.device = actor.device
        self.observations = environment.reset()
        grid = self.observations.shape[:2]
        self.store = self._store()
        self.stretches = Stretches(population, "explore", self.device)
        self.without = torch.no_grad()  # made once: to make it takes as long as a small layer
        self.taken = 0  # steps in every environment
        self.elsewhere = 0  # transitions of other workers, which count where chances fall by how many there were
        self.returns, self.lengths = np.zeros(grid), np.zeros(grid, np.int64)
        self.lost: list[list[int]] = [[] for _ in range(population.size)]
        self.beginnings = Beginnings(self.observations)
        self.ended: list[tuple[int, float, int]] = []
        self.faults = 0

    def _store(self) -> Store:
        """What keeps what is seen: images each frame once."""
        members, environments, *shape = self.observations.shape
        size, device = (members, environments, self.part.capacity), self.device
        made = (*size, tuple(shape), self.spread.actions, self.part.on_disk, device)
        if len(shape) == 1:
            return Store(*made)
        depth = self.environment.count if isinstance(self.environment, Stacked) else 1
        return ImageStore(*made, depth, torch.from_numpy(self.observations).dtype)

    @property
    def acted(self) -> int:
        """Transitions of each member so far."""
        return self.taken * self.store.environments

    def begin(self) -> None:
        """Forget the episodes that ended before."""
        self.ended, self.faults = [], 0

    def step(self) -> None:
        """Act everywhere once, and store that."""
        shown = torch.from_numpy(self.observations)
        there = shown.to(self.device)
        if self.learns:
            self.actor.observe(there)
        actions = self._act(there).cpu()
        outside = self.spread.outside(actions)
        step = self.environment.step(outside.numpy())
        done, following = step.terminated | step.truncated, step.observations
        if step.final is not None:
            following = following.copy()
            following[done] = step.final
        place = self.store.cursor
        rewards = self._worth(step, shown, outside, following) if self.rewards else step.rewards
        self.store.push(self.observations, actions.numpy(), following, rewards, ~step.terminated, done)
        self.observations, self.taken = step.observations, self.taken + 1
        self.returns += step.rewards
        self.lengths += 1
        if any(self.lost):
            self._replace(place, step)
        if step.final is not None:
            self.beginnings.ended(step)
            self._end(place, step, done)

    def _act(self, shown: Tensor) -> Tensor:
        """Actions [P, E, A] in units."""
        draw, spread, count = self.stretches.at(self.taken), self.spread, shown.shape[1]
        acted = self.acted + self.elsewhere
        if acted < self.part.random:
            return draw("random", lambda generator, n: spread.anything((n, count), generator))
        others = self.exploration.instead(self.actor, count, draw, acted)
        where = 0 if others is None else np.count_nonzero(others[0].cpu().numpy())
        if others is not None and where == others[0].numel():
            return others[1]
        with self.without:
            said = self._ask(shown, draw)
            actions = self.exploration.act(self.actor, said, draw, acted)
        return torch.where(*others, actions) if others is not None and where else actions

    def _ask(self, shown: Tensor, draw: Drawing) -> Tensor:
        """What the policy's network says, [P, E, K]."""
        if not self.noisy:
            return cast(Tensor, self.actor(self.actor.see(shown)))
        with noisy(self.actor.body, draw, "noise"):
            return cast(Tensor, self.actor(self.actor.see(shown)))

    def _worth(self, step: Step, shown: Tensor, actions: Tensor, following: np.ndarray) -> np.ndarray:
        """[P, E] what the method's rewards make of those of a step."""
        live = (~step.terminated).astype(np.float32)
        columns = map(torch.from_numpy, (step.rewards, step.terminated, step.truncated, live))
        told, terminated, truncated, discounts = (x[:, None] for x in columns)
        rollout = Transitions(
            shown[:, None], actions[:, None], told, terminated, truncated, discounts=discounts,
            weights=None if step.faulty is None else torch.from_numpy(~step.faulty).float()[:, None],
            next_observations=torch.from_numpy(following)[:, None],
        )  # fmt: skip
        for reward in self.rewards:
            rollout.rewards = reward.shape(rollout)
        return rollout.rewards[:, 0].numpy()

    def _end(self, place: int, step: Step, done: np.ndarray) -> None:
        """Note the episodes that ended, and take out those whose environment failed."""
        self.exploration.ended(torch.from_numpy(done))
        for m, e in np.argwhere(done):
            if step.faulty is not None and step.faulty[m, e]:
                self.faults += 1
                self._take_out(int(m), place + int(e), int(self.lengths[m, e]))
            else:
                self.ended.append((int(m), float(self.returns[m, e]), int(self.lengths[m, e])))
            self.returns[m, e], self.lengths[m, e] = 0.0, 0

    def _take_out(self, member: int, last: int, length: int) -> None:
        """Replace the rows of a failed episode, or remember them until there is a row to replace them with."""
        store = self.store
        kept = min(length, store.capacity // store.environments)
        gone = [(last - k * store.environments) % store.capacity for k in range(kept)]
        taken = {*gone, *self.lost[member]}
        source = next((r for r in range(store.size) if r not in taken and store.has(member, r)), None)
        if source is None:
            self.lost[member] = sorted(taken)
            return
        for row in gone:
            store.copy_row(member, source, row)

    def _replace(self, place: int, step: Step) -> None:
        """Put the first row that counts in the place of those that were lost before there was any."""
        for member, gone in enumerate(self.lost):
            fine = [e for e in range(self.store.environments) if step.faulty is None or not step.faulty[member, e]]
            fine = [e for e in fine if place + e not in gone]
            if gone and fine:
                for row in gone:
                    self.store.copy_row(member, place + fine[0], row)
                self.lost[member] = []

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """Where every environment and episode stands, and what is stored."""
        return {
            "environment": self.environment.state(),
            "observations": torch.from_numpy(self.observations.copy()),
            "returns": torch.from_numpy(self.returns.copy()),
            "lengths": torch.from_numpy(self.lengths.copy()),
            "taken": self.taken,
            "lost": self.lost,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Undo `state`; the store is read apart."""
        self.environment.restore(state["environment"])
        self.observations = state["observations"].numpy().copy()
        self.returns, self.lengths = state["returns"].numpy().copy(), state["lengths"].numpy().copy()
        self.taken, self.lost = state["taken"], [list(x) for x in state["lost"]]
        self.beginnings.forget()
