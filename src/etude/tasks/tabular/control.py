"""Finite decision processes as tasks of control: a state is seen as a row of numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from etude.core.control import ControlTask, VectorEnvironment
from etude.core.errors import ConfigError
from etude.tasks.control._batched import ArrayEnvironment
from etude.tasks.tabular.finite import FiniteMDP

SURE = 1 - 1e-12
"""What chances add up to when they are meant to be 1."""


class TabularArrays(ArrayEnvironment):
    """States [M, E, 1]: the number of the state where one is. Where an episode ends one stays.

    Args:
        mdp: member by member.
        shown: [S, D] what is seen of each state.
    """

    def __init__(
        self, mdp: FiniteMDP, shown: np.ndarray, limit: int, seeds: Sequence[int], count: int, purpose: str
    ) -> None:
        super().__init__(seeds, count, purpose)
        self.limit, self.shown, self.rewards = limit, shown.astype(np.float32), mdp.rewards.numpy()
        self.moves, self.begins = _summed(mdp.transitions), _summed(mdp.start)
        self.members = np.arange(len(seeds))[:, None]
        self.observation_space = spaces.Box(float(shown.min()), float(shown.max()), shown.shape[1:])
        self.action_space = spaces.Discrete(mdp.rewards.shape[-1])

    def start(self, uniform: np.ndarray) -> np.ndarray:
        found: np.ndarray = (self.begins <= uniform).sum(-1, keepdims=True)
        return found

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        here, chosen = states[..., 0], actions[..., 0].astype(np.int64)
        there = (self.moves[self.members, here, chosen] <= self.luck(1)).sum(-1)
        ended = there == len(self.shown)
        rewards = self.rewards[self.members, here, chosen]
        return np.where(ended, here, there)[..., None], rewards, ended

    def observe(self, states: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.shown[states[..., 0]]
        return found


def _summed(chances: Tensor) -> np.ndarray:
    """Running sums along the last axis; those that are 1 but for rounding are 1, so that no draw lies above them."""
    sums = chances.cumsum(-1).numpy()
    return np.where(sums >= SURE, 1.0, sums)


class TabularTask(ControlTask, abstract=True):
    """A finite decision process, or one for each member, as a task of control.

    A member's seed says what chance does in its episodes and, where tables are drawn, its tables.
    """

    def tables(self, seeds: Sequence[int]) -> FiniteMDP:
        """The processes of members with these seeds."""
        raise NotImplementedError

    def length(self) -> int:
        """Steps after which an episode is truncated."""
        raise NotImplementedError

    def shown(self) -> np.ndarray:
        """[S, D] what is seen of each state; one-hot unless a task says otherwise."""
        return np.eye(self.tables([0]).rewards.shape[1])

    def mdp(self, seeds: Sequence[int], gamma: float = 1.0, horizon: bool = False) -> FiniteMDP:
        """The processes of members with these seeds, discounted; with `horizon`, of episodes of the task's length.

        >>> from etude.tasks.tabular.n_chain import n_chain
        >>> n_chain.mdp([0], horizon=True).horizon
        19
        """
        return dataclasses.replace(self.tables(seeds), gamma=gamma, horizon=self.length() if horizon else None)

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return TabularArrays(self.tables(seeds), self.shown(), self.length(), seeds, count, purpose)


def at_least(task: ControlTask, states: int, least: int) -> None:
    """Raise ConfigError for a chain that is too short."""
    if states < least:
        raise ConfigError(f"{type(task).__name__}.states must be at least {least}, got {states}.")


def state(number: int, count: int) -> Tensor:
    """[count] an episode always begins there.

    >>> state(1, 3).tolist()
    [0.0, 1.0, 0.0]
    """
    found = torch.zeros(count, dtype=torch.float64)
    found[number] = 1.0
    return found
