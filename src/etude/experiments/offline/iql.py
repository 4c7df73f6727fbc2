"""The claim of iql: IQL on mixed logs, against cloning them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experiments.swings import MIXED, compared

TEMPERED = {"actor.clone.weight.beta": 0.1}
"""Rewards here are some ten times those that the paper's 3 is for."""


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of both after as many updates, from logs of each seed's own."""
    one: Any = get_method("iql")
    other: Any = get_method("bc")
    return compared(seeds, one, other, MIXED, {**TEMPERED, **(arm or {})}, baseline or {})
