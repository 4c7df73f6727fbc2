"""Finite Markov decision processes as tables, many at once, whose values are known exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from etude.core.errors import ConfigError

NEAR = 1e-9
"""How far chances may be from adding up to 1."""


@dataclass(frozen=True)
class FiniteMDP:
    """P processes of S states and A actions.

    Args:
        transitions: the chance of each next state; what is missing to 1 is the chance that the episode ends.
        rewards: what is earned, on average.
        start: the chance that an episode begins in each state, the same for all.
        gamma: the discount of a step.
        horizon: steps of an episode, for what is asked of its stages; None: it goes on.

    Shapes: transitions [P, S, A, S], rewards [P, S, A], start [S], all float64.

    Raises: ConfigError for tables that do not fit each other, or are no chances.

    >>> one = torch.ones(1, 1, 1, 1, dtype=torch.float64)  # a state that pays 1 and is never left
    >>> round(FiniteMDP(one, one[..., 0], one[0, 0, 0], gamma=0.75).optimal().item(), 9)
    4.0
    """

    transitions: Tensor
    rewards: Tensor
    start: Tensor
    gamma: float = 1.0
    horizon: int | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.rewards.shape)
        if len(shape) != 3 or self.transitions.shape != (*shape, shape[1]) or self.start.shape != shape[1:2]:
            raise ConfigError(
                "A FiniteMDP must have transitions [P, S, A, S], rewards [P, S, A] and start [S], got "
                f"{list(self.transitions.shape)}, {list(shape)} and {list(self.start.shape)}."
            )
        sums = self.transitions.sum(-1)
        if not (bool((self.transitions >= 0).all()) and bool((sums <= 1 + NEAR).all())):
            raise ConfigError("FiniteMDP.transitions must be chances: at least 0, and of each action at most 1 in all.")
        if not (bool((self.start >= 0).all()) and abs(float(self.start.sum()) - 1) <= NEAR):
            raise ConfigError("FiniteMDP.start must be chances: at least 0, and 1 in all.")
        if not bool(self.rewards.isfinite().all()):
            raise ConfigError("FiniteMDP.rewards must be finite.")
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"FiniteMDP.gamma must be a number in [0, 1], got {self.gamma}.")

    def backup(self, values: Tensor) -> Tensor:
        """r + gamma P v: values [P, S] of what follows -> [P, S, A]."""
        return self.rewards + self.gamma * (self.transitions * values[:, None, None]).sum(-1)

    def mean(self, values: Tensor) -> Tensor:
        """What an episode is worth where it begins: [P, ..., S] -> [P, ...]."""
        return (values * self.start).sum(-1)

    # Without end

    def optimal(self, within: float = 1e-12) -> Tensor:
        """Q of the best policy [P, S, A], by value iteration until it is nearer than `within`.

        Raises: ConfigError if gamma is 1.
        """
        self._discounted()
        q = torch.zeros_like(self.rewards)
        while True:
            following = self.backup(q.amax(-1))
            if float((following - q).abs().max()) * self.gamma <= within * (1 - self.gamma):
                return following
            q = following

    def evaluate(self, policy: Tensor) -> Tensor:
        """V of a policy [P, S, A] -> [P, S]: (I - gamma P_pi)^-1 r_pi.

        Raises: ConfigError if gamma is 1.
        """
        self._discounted()
        moves = (policy[..., None] * self.transitions).sum(2)
        system = torch.eye(moves.shape[-1], dtype=moves.dtype) - self.gamma * moves
        found: Tensor = torch.linalg.solve(system, (policy * self.rewards).sum(-1))
        return found

    def _discounted(self) -> None:
        if self.gamma >= 1:
            raise ConfigError("Values without a horizon need a discount: set FiniteMDP.gamma below 1.")

    # Stage by stage

    def optimal_stages(self) -> Tensor:
        """Q of the best policy with h = 0 .. H - 1 steps behind it, [P, H, S, A].

        Raises: ConfigError without a horizon.
        """
        value = torch.zeros_like(self.rewards[..., 0])
        stages = []
        for _ in range(self._steps()):
            stages.append(self.backup(value))
            value = stages[-1].amax(-1)
        return torch.stack(stages[::-1], 1)

    def evaluate_stages(self, policy: Tensor) -> Tensor:
        """V of a policy [P, H, S, A] with h = 0 .. H - 1 steps behind it, [P, H, S].

        Raises: ConfigError without a horizon.
        """
        value = torch.zeros_like(self.rewards[..., 0])
        stages = []
        for h in reversed(range(self._steps())):
            value = (policy[:, h] * self.backup(value)).sum(-1)
            stages.append(value)
        return torch.stack(stages[::-1], 1)

    def _steps(self) -> int:
        if self.horizon is None:
            raise ConfigError("Values of stages need a horizon: set FiniteMDP.horizon.")
        return self.horizon


def greedy(values: Tensor) -> Tensor:
    """The policy that takes the first of the best actions, Q [..., A] -> [..., A].

    >>> greedy(torch.tensor([1.0, 3.0, 3.0])).tolist()
    [0.0, 1.0, 0.0]
    """
    best = values.argmax(-1, keepdim=True)
    return torch.zeros_like(values).scatter_(-1, best, 1.0)


def optimal_return(mdp: FiniteMDP) -> Tensor:
    """What the best policy earns in an episode, [P]: within its horizon, or without end if it has none."""
    if mdp.horizon is None:
        return mdp.mean(mdp.optimal().amax(-1))
    return mdp.mean(mdp.optimal_stages()[:, 0].amax(-1))


def same(moves: Tensor, rewards: Tensor, start: Tensor, members: int) -> FiniteMDP:
    """One process for every member, tables [S, A, S], [S, A] and [S]."""
    if math.prod(moves.shape) == 0:
        raise ConfigError("A FiniteMDP has at least one state and one action.")
    return FiniteMDP(moves.expand(members, *moves.shape), rewards.expand(members, *rewards.shape), start)
