"""The claim of a2pr: A2PR on logs of two kinds, against TD3+BC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experiments.swings import compared

TWO_KINDS = (0.3, 8.0)
"""Deviations of what chance adds to the controller's torque, half of the episodes each."""


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of both after as many updates, from logs of each seed's own."""
    one: Any = get_method("a2pr")
    other: Any = get_method("td3-bc")
    return compared(seeds, one, other, TWO_KINDS, arm or {}, baseline or {})
