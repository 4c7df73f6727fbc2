"""Sums of what an update reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Tally:
    """Sums of what is reported, over the micro-batches of a step."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, total: float, count: float = 1.0) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + total
        self.counts[name] = self.counts.get(name, 0.0) + count

    def count(self, name: str) -> None:
        """Report how often this happened."""
        self.sums[name], self.counts[name] = self.sums.get(name, 0.0) + 1, 1.0

    def merge(self, other: Tally) -> None:
        """Add what another tally holds."""
        for name, total in other.sums.items():
            self.add(name, total, other.counts[name])

    def add_tensor(self, name: str, value: Tensor, mask: Tensor) -> None:
        on = value.detach()[mask] if value.dim() > 1 else value.detach()
        self.add(name, float(on.sum()), on.numel())

    def means(self) -> dict[str, float]:
        return {k: v / max(self.counts[k], 1e-12) for k, v in self.sums.items()}
