"""Networks that somebody wrote in plain torch, that tests name by this file."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Reads the shape of one observation."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(shape[0], 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh())
        self.register_buffer("offset", torch.full((5,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x) + self.offset
        return found


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(6))
        self.layers(torch.zeros(1, 1, 10, 10))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


class Batch(Net):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.layers.append(nn.BatchNorm1d(5))


class Drop(Net):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.layers.append(nn.Dropout(0.5))


class Flat(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x.sum()


class Needy(nn.Module):
    def __init__(self, shape: tuple[int, ...], depth: int) -> None:
        super().__init__()


thing = 3
