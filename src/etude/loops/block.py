"""A training step of control while it goes on: sums over what was learned, and the episodes that ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Block:
    """What came of some of a training step's updates.

    Args:
        sums: [P] each by name, `counts` how many were added.
        ended: episodes: member, return, length. faults: those whose environments failed.
        steps: environment steps of each member. collecting: seconds of acting.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    ended: list[tuple[int, float, int]] = field(default_factory=list)
    faults: int = 0
    steps: int = 0
    collecting: float = 0.0

    def add(self, measured: Mapping[str, Tensor], times: int = 1) -> None:
        """Add numbers [P] of one update, or the sums of several."""
        for name, value in measured.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
            self.counts[name] = self.counts.get(name, 0) + times

    def means(self, counted: str | None = None) -> dict[str, list[float]]:
        """[P] of every name; sums of those whose names end so."""
        summed = {name for name in self.sums if counted is not None and name.endswith(counted)}
        return {k: (v if k in summed else v / self.counts[k]).tolist() for k, v in self.sums.items()}

    def join(self, other: Block) -> None:
        """Add what somebody else did."""
        for name, value in other.sums.items():
            self.add({name: value}, other.counts[name])
        self.ended += other.ended
        self.faults, self.steps = self.faults + other.faults, self.steps + other.steps
        self.collecting += other.collecting

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        precise = [k for k, v in self.sums.items() if v.dtype == torch.float64]
        return {**self.__dict__, "sums": {k: v.tolist() for k, v in self.sums.items()}, "precise": precise}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Block:
        """Undo `to_json`."""
        own, precise = dict(data), data["precise"]
        del own["precise"]
        types = {k: torch.float64 if k in precise else torch.float32 for k in data["sums"]}
        sums = {k: torch.tensor(v, dtype=types[k]) for k, v in data["sums"].items()}
        return cls(**{**own, "sums": sums, "ended": [(m, r, n) for m, r, n in data["ended"]]})
