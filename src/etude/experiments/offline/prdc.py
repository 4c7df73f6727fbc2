"""The claim of prdc: PRDC on bad logs, against TD3+BC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experiments.swings import compared

BAD = (2.0, 8.0)
"""Deviations of what chance adds to the controller's torque, half of the episodes each."""


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of both after as many updates, from logs of each seed's own."""
    one: Any = get_method("prdc")
    other: Any = get_method("td3-bc")
    return compared(seeds, one, other, BAD, arm or {}, baseline or {})
