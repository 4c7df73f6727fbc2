"""Data to learn rewards from: linear Gaussians, and one step of Pendulum. All members are drawn together.

P members,  N rows,  n dimensions of y
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

ROWS = 100
"""Rows of a linear Gaussian that are fitted."""


class Draws:
    """Random numbers of each member's own, so that no member's data depend on who is computed with it.

    Args:
        seeds: one for each member.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def normal(self, *shape: int) -> Tensor:
        """[P, *shape] in float64."""
        return torch.stack([torch.randn(shape, generator=g, dtype=torch.float64) for g in self.generators])

    def uniform(self, *shape: int) -> Tensor:
        """[P, *shape] in float64."""
        return torch.stack([torch.rand(shape, generator=g, dtype=torch.float64) for g in self.generators])


class Linear:
    """ROWS pairs of each member: y = W x + noise of covariance Sigma; as many again to learn U from."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.random = Draws(seeds)
        self.weight = self.random.normal(4, 2)
        mixing = torch.eye(2, dtype=torch.float64) + 0.7 * self.random.normal(2, 2)
        self.covariance = mixing @ mixing.mT + 0.05 * torch.eye(2, dtype=torch.float64)
        self.tril = torch.linalg.cholesky(self.covariance)
        self.train, self.held = self.draw(ROWS), self.draw(ROWS)

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        x = self.random.normal(rows, 4)
        return x, x @ self.weight + self.random.normal(rows, 2) @ self.tril.mT

    def start(self) -> dict[str, Tensor]:
        members = len(self.weight)
        shapes = {"weight": (members, 4, 2), "bias": (members, 1, 2), "tril": (members, 2, 2)}
        return {k: torch.zeros(s, dtype=torch.float64, requires_grad=True) for k, s in shapes.items()}


class Pendulum:
    """Observation and random torque -> next observation, both standardised: rows to fit and rows to test on."""

    def __init__(self, seeds: Sequence[int], rows: int = 5000) -> None:
        from etude.tasks.control.pendulum import PendulumArrays

        self.random = Draws(seeds)
        angle = (2 * self.random.uniform(rows) - 1) * math.pi
        states = torch.stack([angle, 16 * self.random.uniform(rows) - 8], -1)
        torque = 4 * self.random.uniform(rows, 1) - 2
        world = PendulumArrays([0], 1, "train")
        following = torch.from_numpy(world.advance(states.numpy(), torque.numpy())[0])
        seen, after = (torch.from_numpy(world.observe(s.numpy())) for s in (states, following))
        x, y = (standard(v.float()) for v in (torch.cat([seen, torque], -1), after))
        cut = rows * 4 // 5
        self.train, self.test = (x[:, :cut], y[:, :cut]), (x[:, cut:], y[:, cut:])

    def start(self, width: int = 64) -> dict[str, Tensor]:
        sizes = [self.train[0].shape[-1], width, width, 2 * self.train[1].shape[-1]]
        found = {}
        for k, (rows, columns) in enumerate(pairwise(sizes)):
            bound = 1 / math.sqrt(rows)
            for name, shape in ((f"weight{k}", (rows, columns)), (f"bias{k}", (1, columns))):
                first = (2 * self.random.uniform(*shape) - 1) * bound
                found[name] = first.float().requires_grad_(True)
        return found


def standard(values: Tensor) -> Tensor:
    """[P, N, n] with mean 0 and deviation 1 over each member's rows."""
    return (values - values.mean(1, keepdim=True)) / values.std(1, keepdim=True)
