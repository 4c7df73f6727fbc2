"""What happens in which order."""

from __future__ import annotations

from typing import Any

from etude.core.errors import ConfigError
from etude.core.fields import PositiveProbability
from etude.core.registry import compositions
from etude.core.slots import Stage

KEPT = ("stages", "curriculum", "reference", "optimizer")
"""Slots that go on from phase to phase; all others are the other method's."""


class Phase(Stage):
    """Until `end` of all steps, learn as another method does: a supervised warm start, say, before reinforcement.

    `stages=(Phase(like="sft", end=0.3), Phase())` is thirty percent of supervised steps, then the method itself.
    Weights, optimizer, its schedule, the reference and the curriculum go on from phase to phase; every other slot is
    the other method's.

    Args:
        like: id of the method to follow; empty for the method itself.
        end: fraction of the training steps at which the phase ends.
    """

    like: str = ""
    end: PositiveProbability = 1.0

    def until(self) -> float:
        return self.end

    def apply(self, method: Any) -> Any:
        if not self.like:
            return method
        other = next((m for m in compositions(self.like) if type(m) is type(method)), None)
        if other is None:
            raise ConfigError(f"{method.id}: a phase cannot be like {self.like}, which is of another kind.")
        return method.replace(**{k: v for k, v in other.slots().items() if k not in KEPT})

    def objection(self, method: Any) -> str | None:
        ends = [s.end for s in method.stages if isinstance(s, Phase)]
        if ends != sorted(set(ends)):
            return f"must end after the phase before it; the ends are {', '.join(map(str, ends))}."
        if max(ends) < 1.0:
            raise ConfigError(f"{method.id}: the last phase ends at {max(ends)} of the steps; give it end=1.")
        return None
