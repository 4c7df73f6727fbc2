"""Small networks that a transform learns from logs before anything else does, in float64 and for all members alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from etude.experience.logs.table import Numbers

RATE = 1e-3


def perceptron(sizes: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Layers of these widths with rectifiers between them, started as torch starts them from this generator.

    >>> perceptron((3, 8, 2), torch.Generator().manual_seed(0))(torch.zeros(5, 3, dtype=torch.float64)).shape
    torch.Size([5, 2])
    """
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layer = nn.Linear(before, after, dtype=torch.float64)
        with torch.no_grad():
            for values in (layer.weight, layer.bias):
                values.uniform_(-1 / math.sqrt(before), 1 / math.sqrt(before), generator=generator)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def standardized(column: Numbers) -> Callable[[Tensor], Tensor]:
    """What makes mean 0 and deviation 1 of a column [N, D], in float64; what never differs stays 0.

    >>> standardized(np.array([[1.0, 5.0], [3.0, 5.0]]))(torch.tensor([[4.0, 5.0]])).tolist()
    [[2.0, 0.0]]
    """
    values = column.astype(np.float64)
    mean, deviation = torch.from_numpy(values.mean(0)), torch.from_numpy(values.std(0))
    deviation = torch.where(deviation > 0, deviation, 1.0)
    return lambda x: (x.double() - mean) / deviation


def fitted(
    network: nn.Module, loss: Callable[[Tensor], Tensor], rows: int, updates: int, batch: int,
    generator: torch.Generator, rate: float = RATE,
) -> None:  # fmt: skip
    """So many steps of Adam on the loss of batches of rows [B], drawn with replacement."""
    adam = torch.optim.Adam(network.parameters(), rate)
    for _ in range(updates):
        index = torch.randint(rows, (min(batch, rows),), generator=generator)
        adam.zero_grad()
        loss(index).backward()
        adam.step()
