"""A Markov decision process small enough to solve, and stand-ins for a rollout, that tests of several rooms share."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from etude.core.control import ControlTask, Step, VectorEnvironment
from etude.core.method import Method
from etude.core.population import FlatParameters, Member
from etude.core.transitions import ActionLogProbs, Transitions
from etude.loops.on_policy import OnPolicyLoop
from etude.tasks.control.cartpole import CartPoleArrays, cartpole

torch.set_num_threads(1)


@dataclass
class MDP:
    """S states, A actions: chances [S, A, S] of the next state, rewards [S, A], chances [S] of the first state."""

    chances: Tensor
    rewards: Tensor
    start: Tensor
    gamma: float = 0.9

    @staticmethod
    def random(seed: int = 0, states: int = 3, actions: int = 2) -> MDP:
        g = torch.Generator().manual_seed(seed)
        chances, start = (
            torch.rand(*n, generator=g, dtype=torch.float64) + 0.1 for n in ((states, actions, states), (states,))
        )
        rewards = torch.randn(states, actions, generator=g, dtype=torch.float64)
        return MDP(chances / chances.sum(-1, keepdim=True), rewards, start / start.sum())

    def values(self, pi: Tensor) -> Tensor:
        """[S] exact values of a policy [S, A]."""
        flow = torch.einsum("sa,sat->st", pi, self.chances)
        eye = torch.eye(len(pi), dtype=torch.float64)
        return torch.linalg.solve(eye - self.gamma * flow, (pi * self.rewards).sum(1))

    def advantages(self, pi: Tensor) -> Tensor:
        """[S, A] Q - V."""
        values = self.values(pi)
        return self.rewards + self.gamma * self.chances @ values - values[:, None]

    def visits(self, pi: Tensor) -> Tensor:
        """[S] discounted share of time in each state; sums to 1."""
        flow = torch.einsum("sa,sat->st", pi, self.chances)
        eye = torch.eye(len(pi), dtype=torch.float64)
        return (1 - self.gamma) * torch.linalg.solve(eye - self.gamma * flow.T, self.start)

    def objective(self, pi: Tensor) -> Tensor:
        """J = sum_s start(s) V(s)."""
        return self.start @ self.values(pi)

    def paths(self, steps: int) -> tuple[Tensor, Tensor]:
        """Every course of `steps` steps: states [steps + 1, E] and actions [steps, E]."""
        states, actions = self.rewards.shape
        rows = list(itertools.product(range(states), *[range(actions), range(states)] * steps))
        found = torch.tensor(rows).T
        return found[0::2], found[1::2]

    def chance(self, pi: Tensor, states: Tensor, actions: Tensor) -> Tensor:
        """[E] of each course, given its first state and action."""
        found = self.chances[states[:-1], actions, states[1:]].prod(0)
        return found * pi[states[1:-1], actions[1:]].prod(0)

    def rollout(self, states: Tensor, actions: Tensor, values: Tensor) -> Transitions:
        """Courses as one member's environments [1, T, E], with V [S] for values."""
        off = torch.zeros(1, *actions.shape, dtype=torch.bool)
        nothing = torch.zeros(off.shape, dtype=torch.float64)
        return Transitions(
            states[None, :-1], actions[None], self.rewards[states[:-1], actions][None], off, off.clone(),
            nothing, nothing, values[states[:-1]][None], values[states[1:]][None],
        )  # fmt: skip


class Softmax(nn.Module):
    """Logits [P, S, A] = mixing [P, S * A, S * A] times the parameters."""

    def __init__(self, logits: Tensor, mixing: Tensor | None = None) -> None:
        super().__init__()
        members, size = len(logits), logits[0].numel()
        eye = torch.eye(size, dtype=torch.float64).expand(members, size, size)
        self.shape, self.mixing = logits.shape, eye if mixing is None else mixing
        self.weight = nn.Parameter(torch.linalg.solve(self.mixing, logits.reshape(members, size, 1)))

    def forward(self) -> Tensor:
        return (self.mixing @ self.weight).view(self.shape)


class EveryPair:
    """What an optimizer sees of all pairs (s, a), each counting as much as the policy meets it: P members, N = S * A.

    Args:
        weights, advantages: [P, S, A].
        other: a module that must stand still.
    """

    def __init__(self, logits: Tensor, weights: Tensor, advantages: Tensor, mixing: Tensor | None = None) -> None:
        self.policy, self.critic = Softmax(logits, mixing), nn.Linear(1, 1, dtype=torch.float64)
        self.critic.weight.data = torch.ones(len(logits), 1, 1, dtype=torch.float64)
        self.critic.bias.data = torch.ones(len(logits), 1, 1, dtype=torch.float64)
        self.parameters = FlatParameters({"policy": self.policy, "critic": self.critic})
        self.old, self.weights = logits.log_softmax(-1), weights
        nothing = torch.zeros_like(advantages).flatten(1)
        off = torch.zeros(nothing.shape, dtype=torch.bool)
        self.batch = Transitions(
            nothing, nothing, nothing, off, off, nothing, self.old.flatten(1), nothing, nothing, advantages.flatten(1)
        )
        self.fresh = True

    def evaluate(self) -> ActionLogProbs:
        logp = self.policy().log_softmax(-1)
        kl = (self.old.exp() * (self.old - logp)).sum(-1, keepdim=True).expand_as(logp)
        return ActionLogProbs(logp.flatten(1), kl=kl.flatten(1))

    def loss(self, policy: ActionLogProbs) -> tuple[Tensor, dict[str, Tensor]]:
        assert self.batch.advantages is not None
        loss = -self.mean((policy.logp - self.batch.behaviour_logp).exp() * self.batch.advantages)
        return loss, {"loss": loss.detach()}

    def mean(self, values: Tensor) -> Tensor:
        return (values * self.weights.flatten(1)).sum(1)

    def fisher(self) -> Tensor:
        """[P, D, D] sum of weight * score score^T, by definition."""
        with torch.no_grad():
            scores = torch.eye(self.old[0].numel(), dtype=torch.float64).view(*self.old[0].shape, -1)
            scores = scores - torch.einsum("psa,sad->psd", self.old.exp(), scores)[:, :, None]
            scores = (scores.flatten(1, 2)) @ self.policy.mixing
            return torch.einsum("pn,pni,pnj->pij", self.weights.flatten(1), scores, scores)


def solved(mdp: MDP, logits: Tensor, mixing: Tensor | None = None) -> EveryPair:
    """All pairs of an MDP, weighted by the policy's visits, with exact advantages; the same for each member."""
    pi = logits[0].softmax(-1)
    weights = (mdp.visits(pi)[:, None] * pi).expand_as(logits)
    return EveryPair(logits, weights, mdp.advantages(pi).expand_as(logits), mixing)


def control_loop(method: Method, seeds: list[int], steps: int = 4) -> OnPolicyLoop:
    """A run on cart-pole."""
    return OnPolicyLoop(method, cartpole, [Member(s) for s in seeds], steps)


LENGTH = 7
"""Steps after which what is poisoned fails."""


class Poisoned(CartPoleArrays):
    """The last environment of `member` shows and pays `poison` times what it should, until it fails."""

    poison, member = 1.0, 1

    def reset(self) -> np.ndarray:
        return self._spoiled(super().reset())

    def _spoiled(self, values: np.ndarray) -> np.ndarray:
        values[self.member, -1] *= np.float32(self.poison)
        return values

    def step(self, actions: np.ndarray) -> Step:
        self.limit = np.full(self.keys.shape, 500)  # type: ignore[misc,assignment]
        self.limit[self.member, -1] = LENGTH  # type: ignore[index]
        self.states[self.member, -1] *= 0.1  # which never falls
        found = super().step(actions)
        faulty = np.zeros_like(found.truncated)
        faulty[self.member, -1] = found.truncated[self.member, -1]
        spoiled = self._spoiled(found.observations), self._spoiled(found.rewards)
        return dataclasses.replace(found, observations=spoiled[0], rewards=spoiled[1], faulty=faulty)


class PoisonedTask(ControlTask):
    id: ClassVar[str] = "poisoned"
    poison: float = 1.0
    member: int = 1

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        environment = Poisoned(seeds, count, purpose)
        environment.poison, environment.member = self.poison, self.member
        return environment
