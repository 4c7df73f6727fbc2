"""Garnet: decision processes drawn at random, one for each seed (Archibald, McKinnon and Thomas, 1995).

Every action leads to `branching` states drawn without replacement, with chances that uniform cuts of [0, 1] leave
between them, and pays a reward uniform in [-1, 1]. Nothing ends an episode but its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.streams import Stream
from etude.tasks.control._batched import uniforms
from etude.tasks.tabular.control import TabularTask
from etude.tasks.tabular.finite import FiniteMDP


class Garnet(TabularTask):
    """The returns of two seeds cannot be compared: each has tables of its own.

    Args:
        states, actions: S and A.
        branching: states that an action may lead to.
        limit: steps after which an episode is truncated; it begins in any state.

    Raises: ConfigError for more branches than states.

    Shapes: tables [P, S, A, S]; observations [M, E, S], one-hot; one of A actions.

    >>> tables = Garnet(states=5, actions=2, branching=2).tables(seeds=[0, 1, 2])
    >>> tables.transitions.shape, (tables.transitions > 0).sum(-1).unique().tolist()
    (torch.Size([3, 5, 2, 5]), [2])
    """

    id: ClassVar[str] = "garnet"
    steps: ClassVar[int] = 50_000
    states: Count = 30
    actions: Count = 4
    branching: Count = 4
    limit: Count = 50

    def check(self) -> None:
        if self.branching > self.states:
            raise ConfigError(
                f"Garnet.branching must be at most the {self.states} states, got {self.branching}: different ones are "
                "drawn."
            )

    def length(self) -> int:
        return self.limit

    def tables(self, seeds: Sequence[int]) -> FiniteMDP:
        s, a, b = self.states, self.actions, self.branching
        keys = np.array([[Stream(seed).split("garnet").key] for seed in seeds], np.uint64)
        drawn = uniforms(keys, np.arange(s * a)[None], s + b)  # [P, S A, .]: an order of the states, b - 1 cuts, reward
        cuts = np.sort(drawn[..., s : s + b - 1], -1)
        whole = np.ones((*cuts.shape[:2], 1))
        chances = np.diff(np.concatenate([0 * whole, cuts, whole], -1), axis=-1)
        moves = np.zeros((len(seeds), s * a, s))
        np.put_along_axis(moves, drawn[..., :s].argsort(-1)[..., :b], chances, -1)
        rewards, start = 2 * drawn[..., -1] - 1, torch.full((s,), 1 / s, dtype=torch.float64)
        tables = (torch.from_numpy(moves).view(-1, s, a, s), torch.from_numpy(rewards).view(-1, s, a))
        return FiniteMDP(*tables, start)


garnet = Garnet()
