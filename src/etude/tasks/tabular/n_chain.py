"""N-chain: a long walk to the right for a large reward, with a small one close by on the left (arXiv:1602.04621).

    0.001 for going left in the first of N states, 1 for going right in the last, nothing else

An episode begins in the second state and has N + 9 steps, so the best return is 11. Who acts at random hardly ever
comes to the end: N says how deep an exploration has to be. (Code that is often used has one step less, and a best
return of 10.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch

from etude.core.fields import Count
from etude.core.streams import Stream
from etude.tasks.control._batched import uniforms
from etude.tasks.tabular.control import TabularTask, at_least, state
from etude.tasks.tabular.finite import FiniteMDP, same

SPARE = 9
"""Steps of an episode beyond the number of states."""


class NChain(TabularTask):
    """The best return is 11, of who always goes right; always left is worth 0.001 a step.

    Args:
        states: N.
        seen: 'one-hot', or 'thermometer', 1 for the state and all to its left.
        mixed: whether the seed draws in each state which of the actions goes right, as in Deep Sea (arXiv:1908.03568).
            Else a network that knows nothing often does the same everywhere, which is best if that is right.

    Raises: ConfigError for fewer than three states.

    Shapes: observations [M, E, N]; one of two actions, left and right.

    >>> from etude.tasks.tabular.finite import optimal_return
    >>> optimal_return(NChain(states=25).mdp([0], horizon=True)).tolist()
    [11.0]
    >>> NChain(states=3, mixed=True).tables([0, 1]).rewards.sum(2).tolist()  # whichever action earns them
    [[0.001, 0.0, 1.0], [0.001, 0.0, 1.0]]
    """

    id: ClassVar[str] = "n-chain"
    steps: ClassVar[int] = 20_000
    states: Count = 10
    seen: Literal["one-hot", "thermometer"] = "one-hot"
    mixed: bool = False

    def check(self) -> None:
        at_least(self, self.states, 3)

    def length(self) -> int:
        return self.states + SPARE

    def tables(self, seeds: Sequence[int]) -> FiniteMDP:
        n = self.states
        moves, rewards = torch.zeros(n, 2, n, dtype=torch.float64), torch.zeros(n, 2, dtype=torch.float64)
        for s in range(n):
            moves[s, 0, max(0, s - 1)] = moves[s, 1, min(n - 1, s + 1)] = 1.0
        rewards[0, 0], rewards[-1, 1] = 0.001, 1.0
        found = same(moves, rewards, state(1, n), len(seeds))
        if not self.mixed:
            return found
        keys = np.array([[Stream(seed).split("n-chain").key] for seed in seeds], np.uint64)
        swapped = torch.from_numpy(uniforms(keys, np.zeros((1, 1), np.int64), n)[:, 0] < 0.5)  # [P, S]
        moves = torch.where(swapped[..., None, None], found.transitions.flip(2), found.transitions)
        return FiniteMDP(moves, torch.where(swapped[..., None], found.rewards.flip(2), found.rewards), found.start)

    def shown(self) -> np.ndarray:
        return np.eye(self.states) if self.seen == "one-hot" else np.tri(self.states)


n_chain = NChain()
