"""The claim of traj-weighting: IQL on logs with few good episodes, weighted or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experiments.offline.iql import TEMPERED
from etude.experiments.swings import compared

FEW = (*(8.0,) * 19, 0.3)
"""Deviations of what chance adds to the controller's torque, of twenty episodes in turn."""


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of both after as many updates, from logs of each seed's own."""
    one: Any = get_method("traj-weighting")
    other: Any = get_method("iql")
    return compared(seeds, one, other, FEW, {**TEMPERED, **(arm or {})}, {**TEMPERED, **(baseline or {})})
