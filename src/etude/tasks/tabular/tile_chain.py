"""A chain with an end on either side, of which tiles are seen: near one end its reward looms, far away gaps are tiny.

Left of the first state an episode ends with a reward of 1, right of the last with 2; nothing else is paid. Far from the
right end, gamma makes the smaller reward the better one, and both ways are worth almost the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch

from etude.core.fields import Count
from etude.tasks.tabular.control import TabularTask, at_least
from etude.tasks.tabular.finite import FiniteMDP, same


class TileChain(TabularTask):
    """From 1 to 2 is earned, by where one starts and which way one goes.

    Args:
        states: how many lie between the ends; an episode begins in any of them.
        left, right: what is paid at the ends.
        seen: 'tiles', each 1 on `width` states side by side, in `offsets` layers that are shifted against each other;
            or 'one-hot'.
        limit: steps after which an episode is truncated.

    Raises: ConfigError for fewer than two states.

    Shapes: observations [M, E, D] of D tiles or S states; one of two actions, left and right.

    >>> TileChain(states=4, width=2, offsets=2).shown().astype(int).tolist()
    [[1, 0, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 1, 0], [0, 1, 0, 0, 1]]
    """

    id: ClassVar[str] = "tile-chain"
    steps: ClassVar[int] = 20_000
    states: Count = 50
    left: float = 1.0
    right: float = 2.0
    seen: Literal["tiles", "one-hot"] = "tiles"
    width: Count = 5
    offsets: Count = 4
    limit: Count = 200

    def check(self) -> None:
        at_least(self, self.states, 2)

    def length(self) -> int:
        return self.limit

    def tables(self, seeds: Sequence[int]) -> FiniteMDP:
        n = self.states
        moves, rewards = torch.zeros(n, 2, n, dtype=torch.float64), torch.zeros(n, 2, dtype=torch.float64)
        for s in range(1, n):
            moves[s, 0, s - 1] = moves[s - 1, 1, s] = 1.0
        rewards[0, 0], rewards[-1, 1] = self.left, self.right
        return same(moves, rewards, torch.full((n,), 1 / n, dtype=torch.float64), len(seeds))

    def shown(self) -> np.ndarray:
        return np.eye(self.states) if self.seen == "one-hot" else tiles(self.states, self.width, self.offsets)


def tiles(states: int, width: int, offsets: int) -> np.ndarray:
    """[S, D] of every state the tiles that cover it, one in each layer; layer k is shifted by k width / offsets."""
    layers = []
    for k in range(offsets):
        tile = (np.arange(states) + k * width // offsets) // width
        layers.append(np.eye(tile[-1] + 1)[tile])
    return np.concatenate(layers, 1)


tile_chain = TileChain()
