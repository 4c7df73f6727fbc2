"""The loop of on-policy control: what a population collects, advantages, minibatch epochs; all members at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from etude.core import stages
from etude.core.complete import complete_rollout
from etude.core.control import Collector, ControlTask, VectorEnvironment
from etude.core.learners import StateCritic, StepHead, StepLearner
from etude.core.loop import StepReport
from etude.core.method import Method
from etude.core.population import FlatParameters, Member, Numbers, Population, per_member, settle
from etude.core.transitions import Transitions
from etude.experience.spaces import observation_shape
from etude.loops.block import Block
from etude.loops.control_update import ControlUpdater
from etude.loops.learning import Learners
from etude.loops.member_report import reported
from etude.loops.states import join_tensors, split_tensors
from etude.loops.true_ends import TrueEnds
from etude.policies.control.actor import Actor
from etude.policies.control.observations import moments
from etude.runtime.checkpoints import load_json, load_tensors, save_json, save_tensors

if TYPE_CHECKING:
    from etude.core.complete import CompleteRolloutMethod

CPU = torch.device("cpu")
WINDOW = 100
"""Episodes over which a member's training return is averaged."""


class OnPolicyLoop:
    """Trains a method of control on a task, a population of members together.

    Args:
        method: a `RolloutMethod`; bound here, once for each of its stages.
        members: who is trained; everything of member k is decided by its own seed and settings.
        steps: training steps in total, each a rollout and its update.
        device: where networks and rollouts are; environments and random numbers are on the CPU.
    """

    headline = "return"
    exact: bool | None = None
    """Whether every member equals its own run here, bit for bit, where that was tried (`loops/probe.py`)."""

    def __init__(self, method: Method, task: ControlTask, members: Sequence[Member], steps: int,
                 device: torch.device = CPU) -> None:  # fmt: skip
        self.task, self.composed, self.steps, self.finished, self.device = task, method, steps, 0, device
        self.population = Population(members)
        bound = stages.bound(method, lambda m: settle(m, self.population))
        self.stages, self.stage = [(until, complete_rollout(own)) for until, own in bound], 0
        self.environment = self._environment(self.method, "train")
        self.updater = self._learner(self.method, self.population)
        self.collector = self._collector(self.method)
        self.recent: list[deque[tuple[float, int]]] = [deque(maxlen=WINDOW) for _ in members]
        self.acted = 0  # environment steps of each member
        self.ends = TrueEnds()

    @property
    def method(self) -> CompleteRolloutMethod:
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
    def critic(self) -> nn.Module | None:
        """The critic's module; None without one."""
        return self.updater.critic

    @property
    def parameters(self) -> FlatParameters:
        """Of policy and critic."""
        return self.updater.parameters

    @property
    def trained(self) -> int:
        """Numbers that are trained of each member, its learners' among them."""
        named = {**dict(self.parameters.named()), **dict(self.updater.learners.named())}
        return sum(x[0].numel() for x in named.values())

    def alone(self, k: int) -> ControlUpdater:
        """What member k acts and learns with in a run of its own, as it begins."""
        population = Population([self.population.members[k]])
        own = settle(stages.applied(self.composed)[0][1].bind(), population)
        return self._learner(complete_rollout(own), population)

    def _environment(self, method: CompleteRolloutMethod, purpose: str) -> VectorEnvironment:
        """The members' environments with what the policy is shown of them."""
        made = self.task.make([m.seed for m in self.population.members], method.experience.environments, purpose)
        return method.policy.watch(made)

    def _collector(self, method: CompleteRolloutMethod) -> Collector:
        """What collects for this method, in the environments as they are."""
        return method.experience.collector(
            self.environment, self.actor, self.population, method.needs(), self.updater.shared
        )

    def _learner(
        self, method: CompleteRolloutMethod, population: Population, actor: Actor | None = None
    ) -> ControlUpdater:
        """Policy (unless it is there), learners and optimizers of a population, the method bound and settled."""
        space = self.environment.action_space
        if actor is None:
            shape = observation_shape(self.environment.observation_space)
            actor = cast(Actor, method.policy.build(shape, space, population)).to(self.device)  # as the slot says
        parts: dict[str, StateCritic | StepHead | StepLearner] = {part.name: part for part in method.learners}
        if method.critic is not None:
            parts["critic"] = method.critic
        networks = {
            name: part.build((actor.width,) if part.shared else actor.shape, space, population).to(self.device)
            for name, part in parts.items()
        }
        apart = {name: part for name, part in parts.items() if isinstance(part, StepLearner)}
        together = {name: module for name, module in networks.items() if name not in apart}
        multipliers = {
            part.name: Numbers(part.multipliers(space, population)).to(self.device) for part in method.lagrangians
        }
        streams = [stream.split("steps", "policy") for stream in population.streams]
        parameters = FlatParameters({"policy": actor, **together, **multipliers}, streams=streams)
        learners = Learners(apart, networks, actor, population, self.steps)
        return ControlUpdater(method, population, parameters, actor, networks.get("critic"), learners)

    # Stages

    def _reach(self, stage: int) -> None:
        """Begin the stages up to this one, in their order."""
        while self.stage < stage:
            before, self.stage = self.method, self.stage + 1
            self._begin_stage(before, self.method)

    def begin_anew(self, slots: Collection[str]) -> None:
        """Let the optimizer start with nothing remembered, if `slots` says so; the learners go on."""
        noise = self.updater.noise
        if "optimizer" in slots:
            self.updater = ControlUpdater(
                self.method, self.population, self.parameters, self.actor, self.critic, self.updater.learners
            )
            self.updater.noise = noise

    def _begin_stage(self, before: CompleteRolloutMethod, method: CompleteRolloutMethod) -> None:
        """Make anew what differs from the stage before, and the optimizer if the stage says so; all else goes on."""
        updater, anew = self.updater, stages.resets(self.composed, self.stage)
        now, then = ((m.critic, *m.learners, *m.lagrangians) for m in (method, before))
        if len(now) != len(then) or any(one is not other for one, other in zip(now, then)):
            self.updater = self._learner(method, self.population, self.actor)
        elif "optimizer" in anew:
            self.begin_anew(anew)
        else:
            updater.follow(method)
        self.updater.noise = updater.noise
        if method.experience is before.experience:
            self.collector.follow(method.needs(), self.updater.shared)
            return
        self.environment.close()
        self.environment = self._environment(method, f"train, stage {self.stage}")
        self.collector = self._collector(method)
        for part in method.rewards:
            part.forget()

    # One step

    def step(self) -> StepReport:
        """Rollouts, as many as the experience says, and what is learned from each."""
        begun, updates = time.monotonic(), self.method.experience.updates
        first = self.finished * updates
        return self.report(self.advance(range(first, first + updates)), time.monotonic() - begun)

    def advance(self, numbers: Iterable[int]) -> Block:
        """The rollouts of these numbers, of `updates` in each training step, and what is learned from each."""
        block = Block()
        for number in numbers:
            self._update(number, block)
        return block

    def report(self, block: Block, taken: float) -> StepReport:
        """What is said of a training step, which is counted."""
        self.finished += 1
        self.acted += block.steps
        report = reported(block, block.means(), self.population, self.recent, self.acted, taken)
        self._reach(stages.current(self.stages, self.finished, self.steps))
        return report

    def _update(self, number: int, block: Block) -> None:
        begun, method, collector = time.monotonic(), self.method, self.collector
        self.updater.check_acting(collector.actor, number)
        batch = collector.collect(number, self.critic)
        block.collecting += time.monotonic() - begun
        self.updater.learners.offer(batch)
        for reward in method.rewards:
            batch.rewards = reward.shape(batch)
        parts = list(method.parts().values())
        for part in parts:
            part.before_update(batch)
        batch = credited(method, batch)
        self.ends.look(batch)
        flat = batch.flat()
        rate = per_member(method.optimizer, lambda part: part.rate(number, self.steps * method.experience.updates))
        metrics = self.updater.run(flat, number, rate)
        metrics["explained_variance"] = _explained(flat)
        said = {"cost": batch.costs, "progress": batch.progress}
        metrics |= {name: batch.mean(numbers) for name, numbers in said.items() if numbers is not None}
        self.actor.observe(flat.observations, flat.weights)
        for part in parts:
            part.after_update(batch)
        block.add(metrics)
        block.ended += collector.ended
        block.faults += collector.faults
        block.steps += batch.rewards[0].numel()

    # Checkpoints

    def save(self, folder: Path) -> None:
        """Weights, normalisers, optimizer, parts' states, environments, counters."""
        state = {
            "parts": [m.state_dict() for _, m in self.stages],
            "collector": self.collector.state(),
            "recent": [[list(x) for x in d] for d in self.recent],
            "finished": self.finished,
            "acted": self.acted,
        }
        plain, tensors = split_tensors(state, "state")
        save_tensors(folder / "policy.safetensors", self.policy_tensors())
        save_tensors(folder / "state.safetensors", {**tensors, **self.updater.tensors()})
        save_json(folder / "state.json", plain)

    def policy_tensors(self) -> dict[str, Tensor]:
        """Networks of the policy and its learners, and the normalisers' moments, [P, ...]."""
        buffers = {f"policy.{k}": v for k, v in self.actor.named_buffers()}
        named = (*self.parameters.named(), *self.updater.learners.named())
        return {**{k: v.contiguous() for k, v in named}, **buffers}

    def load_policy(self, folder: Path) -> None:
        """Take the weights and moments of a checkpoint."""
        finished = load_json(folder / "state.json")["finished"]
        self._reach(stages.current(self.stages, finished, self.steps))
        self._set(load_tensors(folder / "policy.safetensors"))

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Begin with these weights and moments, of all that `policy_tensors` names; slow copies follow at once."""
        self._set(tensors)
        for trainer in self.updater.learners.trainers.values():
            for slow, fast in trainer.pairs() if trainer.target is not None else ():
                slow.copy_(fast)

    def _set(self, tensors: Mapping[str, Tensor]) -> None:
        self.parameters.load(tensors)
        self.updater.learners.load_networks(tensors)
        for name, buffer in self.actor.named_buffers():
            buffer.copy_(tensors[f"policy.{name}"])

    def load(self, folder: Path) -> None:
        """Go back to exactly where `save` was called."""
        tensors = {k: v.to(self.device) for k, v in load_tensors(folder / "state.safetensors").items()}
        state = join_tensors(load_json(folder / "state.json"), tensors)
        self.load_policy(folder)
        self.updater.load(tensors)
        for (_, method), learned in zip(self.stages, state["parts"], strict=True):
            method.load_state_dict(learned)
        self.collector.restore(state["collector"])
        self.recent = [deque(((r, n) for r, n in d), maxlen=WINDOW) for d in state["recent"]]
        self.finished, self.acted = state["finished"], state["acted"]

    def close(self) -> None:
        """End the environments."""
        self.environment.close()


def credited(method: CompleteRolloutMethod, batch: Transitions) -> Transitions:
    """The rollout with its advantages, and with what its critic learns."""
    part = method.advantages
    return batch.replace(advantages=part.of_transitions(batch), returns=part.returns_of_transitions(batch))


def _explained(batch: Transitions) -> Tensor:
    """[P] share of the returns' variance that the values explain."""
    if batch.returns is None:
        return batch.values.new_zeros(len(batch.values))
    spread, left = (moments(x, batch.weights)[1][:, 0] for x in (batch.returns, batch.returns - batch.values))
    return 1 - left / spread.clamp(min=1e-12)
