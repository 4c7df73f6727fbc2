"""Sums of what an update reports; they stay on the device until all are asked for at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Sum = float | Tensor
"""A number of the host's, or one of the device's [] in float64."""


@dataclass
class Tally:
    """Sums of what is reported, over the micro-batches of a step."""

    sums: dict[str, Sum] = field(default_factory=dict)
    counts: dict[str, Sum] = field(default_factory=dict)

    def add(self, name: str, total: Sum, count: Sum = 1.0) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + total
        self.counts[name] = self.counts.get(name, 0.0) + count

    def count(self, name: str) -> None:
        """Report how often this happened."""
        self.sums[name], self.counts[name] = self.sums.get(name, 0.0) + 1, 1.0

    def merge(self, other: Tally, before: str = "") -> None:
        """Add what another tally holds, `before` standing before its names."""
        for name, total in other.sums.items():
            self.add(before + name, total, other.counts[name])

    def add_tensor(self, name: str, value: Tensor, mask: Tensor) -> None:
        """Add values [B, T] where the mask is set, or values [B]."""
        value = value.detach().double()
        if value.dim() == 1:
            self.add(name, value.sum(), float(value.numel()))
        else:
            self.add(name, torch.where(mask, value, 0.0).sum(), mask.sum())

    def means(self) -> dict[str, float]:
        """What there is to report, fetched at once."""
        found = numbers([*self.sums.values(), *self.counts.values()])
        sums, counts = found[: len(self.sums)], found[len(self.sums) :]
        return {k: total / max(count, 1e-12) for k, total, count in zip(self.sums, sums, counts)}


def numbers(values: Sequence[Sum]) -> list[float]:
    """The host's numbers of values, those of the device in one transfer."""
    there = [x.double() for x in values if isinstance(x, Tensor)]
    fetched = iter(torch.stack(there).tolist() if there else [])
    return [next(fetched) if isinstance(x, Tensor) else float(x) for x in values]


def on_host(*lists: Sequence[Tensor]) -> list[list[Tensor]]:
    """Lists of small tensors as they are, on the host, in one transfer.

    >>> on_host([torch.tensor([1.0, 2.0])], [torch.tensor(3.0)])
    [[tensor([1., 2.])], [tensor(3.)]]
    """
    flat = [x.detach().reshape(-1).double() for own in lists for x in own]
    fetched = iter(torch.cat(flat).cpu().split([len(x) for x in flat]) if flat else [])
    return [[next(fetched).to(x.dtype).view(x.shape) for x in own] for own in lists]
