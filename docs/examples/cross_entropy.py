"""The cross-entropy method over a linear policy: a loop, its kind of method and a method, in one file.

Each training step draws weights around a mean, plays with all of them, and moves the mean and the spread to those of
the best (the elite); nothing is differentiated. Rubinstein and Kroese, The Cross-Entropy Method (2004); for policies
Szita and Lorincz, Learning Tetris Using the Noisy Cross-Entropy Method (2006).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from etude.core.control import ControlTask
from etude.core.fields import Count, Fraction, Positive
from etude.core.loop import StepReport
from etude.core.method import Method
from etude.core.population import FlatParameters, Member, Population
from etude.core.step_slots import Policy
from etude.core.worlds import World
from etude.experience.spaces import observation_shape
from etude.loops import LOOPS
from etude.policies.control.actor import Actor, ActorPolicy, Player
from etude.policies.control.networks import MLP
from etude.runs.kinds import RUNS, RunOfKind
from etude.runtime.checkpoints import load_json, load_tensors, save_json, save_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchMethod(Method):
    """What the loop below reads, and nothing else.

    Args:
        candidates: weights that are tried in a training step, each for `steps` environment steps.
        elite: the share of them that the next mean is made of.
        spread: standard deviation of the weights at first; `noise` is the least that it falls to.
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.CONTROL})
    required: ClassVar[tuple[str, ...]] = ("policy",)

    policy: Policy | None = None
    candidates: Annotated[int, Ge(2)] = 16
    steps: Count = 500
    elite: Fraction = 0.25
    spread: Positive = 1.0
    noise: Positive = 0.1


class CrossEntropy:
    """Trains a `SearchMethod`, a population of members together, each with a search of its own.

    Args:
        members: who is trained; everything of member k is decided by its own seed.
        steps: training steps in total.
    """

    headline = "return"

    def __init__(self, method: SearchMethod, task: ControlTask, *, members: Sequence[Member], steps: int) -> None:
        self.method, self.task, self.steps, self.finished = method.bind(), task, steps, 0
        self.population = Population(members)
        self.crowd = [m for m in members for _ in range(method.candidates)]
        self.actor, self.parameters = self._actor(members)
        self.parameters.values.zero_()  # the mean, [P, D]
        self.spread = torch.full_like(self.parameters.values, method.spread)
        self.trained = self.parameters.values.shape[1]  # numbers of each member

    def _actor(self, members: Sequence[Member]) -> tuple[Actor, FlatParameters]:
        environment = self.task.make([0], 1, "spaces")
        shape, actions = observation_shape(environment.observation_space), environment.action_space
        environment.close()
        actor = self.method.policy.build(shape, actions, Population(members))
        return actor, FlatParameters({"policy": actor})

    @torch.no_grad()
    def step(self) -> StepReport:
        """Draw candidates, play with them, and go to the best."""
        n, mean = self.method.candidates, self.parameters.values
        noise = self.population.draw("step", self.finished, of=lambda g: torch.randn(n, mean.shape[1], generator=g))
        candidates = mean[:, None] + self.spread[:, None] * noise  # [P, n, D]
        returns = self._play(candidates.flatten(0, 1)).view(-1, n)
        best = returns.topk(max(1, round(self.method.elite * n)), 1).indices
        elite = candidates.gather(1, best[..., None].expand(-1, -1, mean.shape[1]))
        mean.copy_(elite.mean(1))
        self.spread = elite.std(1, correction=0).clamp(min=self.method.noise)
        self.finished += 1
        members = {"return": returns.mean(1).tolist(), "spread": self.spread.mean(1).tolist()}
        metrics = {name: sum(each) / len(each) for name, each in members.items()}
        metrics["environment_steps"] = float(self.finished * n * self.method.steps)
        return StepReport(metrics, members=members)

    def _play(self, weights: Tensor) -> Tensor:
        """[P n] mean reward of an episode, from weights [P n, D]; candidates of a member meet the same starts."""
        actor, parameters = self._actor(self.crowd)
        parameters.values.copy_(weights)
        environment = self.task.make([m.seed for m in self.crowd], 1, f"step {self.finished}")
        player, observations = Player(actor, len(self.crowd), 1), environment.reset()
        total, episodes = torch.zeros(len(self.crowd)), torch.ones(len(self.crowd))
        for left in reversed(range(self.method.steps)):
            step = environment.step(actor.distribution.mode(player.act(torch.from_numpy(observations))).numpy())
            done = torch.from_numpy(step.terminated | step.truncated)
            total += torch.from_numpy(step.rewards)[:, 0]
            episodes += done[:, 0] * bool(left)
            player.ended(done)
            observations = step.observations
        environment.close()
        return total / episodes

    # Checkpoints

    def save(self, folder: Path) -> None:
        """The policy where evaluating looks for it, the spread, the count of steps."""
        save_tensors(folder / "policy.safetensors", {k: v.contiguous() for k, v in self.parameters.named()})
        save_tensors(folder / "state.safetensors", {"spread": self.spread})
        save_json(folder / "state.json", {"finished": self.finished})

    def load(self, folder: Path) -> None:
        """Go back to exactly where `save` was called."""
        self.parameters.load(load_tensors(folder / "policy.safetensors"))
        self.spread = load_tensors(folder / "state.safetensors")["spread"]
        self.finished = load_json(folder / "state.json")["finished"]


class SearchRun(RunOfKind):
    """Budgets are environment steps of each member, a training step is a round of candidates."""

    def training_steps(self, method: SearchMethod, budget: int) -> int:
        return -(-budget // (method.candidates * method.steps))


LOOPS[SearchMethod, World.CONTROL] = f"{__name__}:CrossEntropy"
RUNS[SearchMethod] = f"{__name__}:SearchRun"

cross_entropy = SearchMethod(id="cross-entropy", policy=ActorPolicy(network=MLP(hidden=()), gain=1.0))
