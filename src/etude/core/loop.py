"""What every loop offers to the run that drives it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass
class StepReport:
    """What one training step did: numbers for `metrics.jsonl`, rollouts for `episodes.jsonl`.

    `members` has, for a population, the metrics of each member.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    episodes: list[dict[str, Any]] = field(default_factory=list)
    members: dict[str, list[float]] = field(default_factory=dict)


class Loop(Protocol):
    """Trains a method on a task, one step at a time; a run (`runtime/run.py`) owns folder, clock and signals."""

    finished: int
    """Training steps done so far."""
    headline: str
    """The metric that matters, for the progress line."""

    def step(self) -> StepReport:
        """Do one training step. Deterministic: same state, same numbers."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything that the next step depends on: tensors as safetensors, the rest as JSON."""
        ...

    def load(self, folder: Path) -> None:
        """Go back to exactly what `save` wrote."""
        ...
