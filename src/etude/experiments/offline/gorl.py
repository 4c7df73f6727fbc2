"""The claim of gorl: TD3+BC guided by one good episode among bad ones, and not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experiments.swings import EPISODES, compared

ONE = (*((2.0, 8.0) * EPISODES)[: EPISODES - 1], 0.3)
"""Deviations of what chance adds to the controller's torque, an episode each."""


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of both after as many updates, from logs of each seed's own."""
    one: Any = get_method("gorl")
    other: Any = get_method("td3-bc")
    return compared(seeds, one, other, ONE, arm or {}, baseline or {})
