"""The loop of learning from what is stored: act and store a step, make the updates that are due, many times."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from etude.core import stages
from etude.core.complete import complete_replay, samplings
from etude.core.control import ControlTask, VectorEnvironment
from etude.core.encoder_slots import encoder_of
from etude.core.loop import StepReport
from etude.core.method import Method
from etude.core.population import CPU, Member, Population, settle
from etude.experience.spaces import observation_shape
from etude.loops.block import Block
from etude.loops.member_report import reported
from etude.loops.replay_update import ReplayUpdater
from etude.loops.replay_watch import ReplayWatch
from etude.loops.states import join_tensors, split_tensors
from etude.policies.control.actor import Actor
from etude.policies.control.replay import acting
from etude.policies.control.units import in_units
from etude.runtime.checkpoints import STORED, load_json, load_tensors, save_json, save_tensors

if TYPE_CHECKING:
    from etude.core.complete import CompleteReplayMethod
    from etude.experience.logged import LoggedReader
    from etude.experience.replay import ReplayCollector

WINDOW = 100
"""Episodes over which a member's training return is averaged."""
BLOCK = 250
"""Environment steps of each member in a training step of the run: how often is reported and may be checkpointed. It
changes no number."""


class OffPolicyLoop:
    """Trains a method on what it stores of a task, a population of members together.

    Args:
        method: a `ReplayMethod`; bound here.
        members: who is trained; everything of member k is decided by its own seed and settings.
        steps: training steps in total, each `block` environment steps of every member and the updates they are due.
        device: where networks learn, and what is stored is, if it fits; environments and random numbers are on the CPU.
    """

    headline = "return"
    exact: bool | None = None
    """Whether every member equals its own run here, bit for bit, where that was tried."""

    def __init__(
        self, method: Method, task: ControlTask, members: Sequence[Member], steps: int, block: int = BLOCK,
        device: torch.device = CPU,
    ) -> None:  # fmt: skip
        self.task, self.composed, self.steps, self.block, self.finished = task, method, steps, block, 0
        self.device = device
        self.population = Population(members)
        bound = stages.bound(method, lambda m: settle(m, self.population))
        self.stages, self.stage = [(until, complete_replay(own)) for until, own in bound], 0
        self.environment = self._watched()
        self.updater = self._learner(self.method, self.population)
        self.collector = self._collector()
        for sampling in (part for _, stage in self.stages for part in samplings(stage)):
            sampling.accepts(self.collector.store.shape)
        for exploration in (stage.exploration for _, stage in self.stages if stage.exploration is not None):
            exploration.accepts(in_units(self.actor))
        self.recent: list[deque[tuple[float, int]]] = [deque(maxlen=WINDOW) for _ in members]
        self.watched = ReplayWatch(self.population, device)

    @property
    def method(self) -> CompleteReplayMethod:
        """The method of the current stage."""
        return self.stages[self.stage][1]

    @property
    def actor(self) -> Actor:
        """The policy's module."""
        return self.updater.actor

    @property
    def policy(self) -> Actor:
        """The same, by the name that every loop has for what it trains."""
        return self.actor

    @property
    def critic(self) -> nn.Module:
        """The critic's module, of a method that has one."""
        return self.updater.networks["critic"]

    @property
    def acted(self) -> int:
        """Environment steps of each member."""
        return self.collector.acted

    @property
    def trained(self) -> int:
        """Numbers that are trained of each member."""
        return sum(t.parameters.values.shape[1] for t in self.updater.trainers.values())

    def _learner(self, method: CompleteReplayMethod, population: Population) -> ReplayUpdater:
        """Policy, critic and learners of a population, the method bound and settled."""
        shape, space = observation_shape(self.environment.observation_space), self.environment.action_space
        actor = acting(method, shape, space, population).to(self.device)
        encoder, encoding = encoder_of(method), cast(Any, actor.encoder)
        held = dict(actor.held.items())  # what acts with the policy it has made
        built = {
            p.name: held.get(p.name) or p.build(actor.shape, space, population)
            for p in method.learners if p is not encoder
        }  # fmt: skip
        if method.value is not None:
            built["value"] = method.value.build(actor.shape, space, population)
        if method.policy.made_of_critic:
            built["critic"] = actor.body
        elif "critic" in held:
            built["critic"] = held["critic"]
        elif method.critic is not None and encoder is not None:
            built["critic"] = (
                method.critic.build_joined(encoding.joined, population) if encoding.joined
                else method.critic.build((encoding.width,), space, population)
            )  # fmt: skip
        elif method.critic is not None:
            built["critic"] = method.critic.build(actor.shape, space, population)
        if encoder is not None:
            built[encoder.name] = encoding
        return ReplayUpdater(method, population, actor, {k: network.to(self.device) for k, network in built.items()})

    def _watched(self) -> VectorEnvironment:
        """The environment as the policy sees it."""
        return self.method.policy.watch(self._made([m.seed for m in self.population.members]))

    def _made(self, seeds: list[int]) -> VectorEnvironment:
        """What is acted in; where logs are learned from, one environment for its spaces, which is never stepped."""
        experience = self.method.experience
        if experience.acts:
            self.headline = "return"
            return self.task.make(seeds, experience.environments, "train")
        self.headline = "policy_loss" if "policy" in self.method.trained else "critic_loss"
        return self.task.make(seeds[:1], 1, "spaces")

    def _collector(self) -> ReplayCollector | LoggedReader:
        experience: Any = self.method.experience
        if experience.reads_logs:
            logs, actor, population = cast(Any, self.task).logs(), self.actor, self.population
            if not experience.acts:
                reader: LoggedReader = experience.reader(logs, actor, population.size, self.method)
                return reader
            beside: ReplayCollector = experience.beside(logs, self.environment, actor, population, self.method)
            return beside
        made: ReplayCollector = experience.collector(
            self.environment, self.actor, self.population, self.method.exploration, self.method.rewards
        )
        return made

    def _reach(self, stage: int) -> None:
        """Go on as this stage says; what learns goes on, and what is stored, unless that begins anew with it."""
        if stage != self.stage:
            before, self.stage = self.method.experience, stage
            self.updater.follow(self.method)
            if self.method.experience is not before:
                self.environment.close()
                self.environment = self._watched()
                self.collector = self._collector()
            collector: Any = self.collector
            collector.exploration, collector.rewards = self.method.exploration, self.method.rewards

    # One step

    def step(self) -> StepReport:
        """`block` environment steps of every member, and the updates that they are due."""
        begun, step = time.monotonic(), self.method.experience.environments
        block = self.advance(range(math.ceil(self.block / step)))
        return self.report(block, self.noticed(), time.monotonic() - begun)

    def advance(self, numbers: Iterable[int], others: bool = False) -> Block:
        """A step in every environment for each of these numbers, and the updates that are due.

        Args:
            others: whether other workers learn on the same numbers meanwhile.
        """
        collector, updater, block = self.collector, self.updater, Block()
        weights = {k: t.parameters.values.clone() for k, t in updater.trainers.items()}
        slow = {k: t.slow.values.clone() for k, t in updater.trainers.items() if t.target is not None}
        rates, start, updates = updater.rates(self.finished, self.steps), self.acted, updater.updates
        collector.begin()
        for _ in numbers:
            acting, had = time.monotonic(), self.acted
            collector.step()
            block.collecting += time.monotonic() - acting
            for _ in range(cast(Any, self.method.experience).due(had, self.acted)):
                for name, measured in updater.run(collector.store, rates):
                    block.add({f"{name}_{key}": value for key, value in measured.items()})
        norms = {k: norm for k in updater.trainers if (norm := block.sums.get(f"{k}_gradient_norm")) is not None}
        updater.check_moved(weights, norms, rates)
        updater.check_followed(weights, slow, updates, others)
        updater.check_stored(collector.store)
        block.ended, block.faults, block.steps = collector.ended, collector.faults, self.acted - start
        return block

    def report(self, block: Block, noticed: Mapping[str, float], taken: float, acted: int | None = None) -> StepReport:
        """What is said of a training step, which is counted.

        Args:
            acted: environment steps of each member so far, if others took some of them.
        """
        self.finished += 1
        members = block.means(counted="_skipped_steps") | self._offered()
        found = reported(block, members, self.population, self.recent, acted or self.acted, taken)
        if not self.method.experience.acts:
            del found.metrics["environment_steps"]  # an update is what a budget counts
            found.metrics["updates_per_second"] = found.metrics.pop("steps_per_second")
        found.metrics |= noticed
        self._reach(stages.current(self.stages, self.finished, self.steps))
        return found

    def noticed(self) -> dict[str, float]:
        """Updates so far, and what is watched."""
        return {"updates": float(self.updater.updates), **self.watched.watch(self.updater, self.collector.store)}

    @torch.no_grad()
    def _offered(self) -> dict[str, list[float]]:
        """Numbers of every member's that learners offer, like a temperature."""
        found = {}
        for name, part in self.updater.offering.items():
            for key, value in self.updater.offers(part, name).items():
                if value.dim() == 1:
                    found[key] = value.tolist()
        return found

    # Checkpoints

    def save(self, folder: Path) -> None:
        """Weights, optimizers, slow copies, parts' states, environments, counters, and what is stored."""
        state = {
            "parts": [m.state_dict() for _, m in self.stages],
            "collector": self.collector.state(),
            "recent": [[list(x) for x in d] for d in self.recent],
            "finished": self.finished,
            "updates": self.updater.updates,
            "watched": self.watched.state(),
        }
        plain, tensors = split_tensors(state, "state")
        save_tensors(folder / "policy.safetensors", self.policy_tensors())
        save_tensors(folder / "state.safetensors", {**tensors, **self.updater.tensors()})
        self.collector.store.save(folder / STORED)
        save_json(folder / "state.json", plain)

    def policy_tensors(self) -> dict[str, Tensor]:
        """Networks of the policy and what learns beside it, and the normalisers' moments, [P, ...]."""
        buffers = {f"policy.{k}": v for k, v in self.actor.named_buffers()}
        return {**{k: v.contiguous() for k, v in self.updater.named()}, **buffers}

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Begin with these weights and moments, of all that `policy_tensors` names; slow copies follow at once."""
        self._set(tensors)
        for trainer in self.updater.trainers.values():
            if trainer.target is not None:
                trainer.slow.values.copy_(trainer.parameters.values)

    @torch.no_grad()
    def _set(self, tensors: Mapping[str, Tensor]) -> None:
        self.updater.load_networks(tensors)
        for name, buffer in self.actor.named_buffers():
            buffer.copy_(tensors[f"policy.{name}"])

    def load_policy(self, folder: Path) -> None:
        """Take the weights and moments of a checkpoint."""
        self._reach(stages.current(self.stages, load_json(folder / "state.json")["finished"], self.steps))
        self._set(load_tensors(folder / "policy.safetensors"))

    def load(self, folder: Path) -> None:
        """Go back to exactly where `save` was called."""
        tensors = load_tensors(folder / "state.safetensors")
        plain = load_json(folder / "state.json")
        state, there = join_tensors(plain, tensors), {k: v.to(self.device) for k, v in tensors.items()}
        self.load_policy(folder)
        self.updater.load(tensors)
        self.updater.updates = state["updates"]
        for (_, method), learned in zip(self.stages, join_tensors(plain["parts"], there), strict=True):
            method.load_state_dict(learned)
        self.collector.restore(state["collector"])
        self.collector.store.load(folder / STORED, self.acted)
        self.recent = [deque(((r, n) for r, n in d), maxlen=WINDOW) for d in state["recent"]]
        self.finished = state["finished"]
        self.watched.restore(state["watched"])

    def close(self) -> None:
        """End the environments."""
        self.environment.close()
