"""The claim of discrete-bcq: likely choices that are worth most, against likely choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experiments.poles import compared


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of both after as many updates, from logs of each seed's own."""
    one: Any = get_method("discrete-bcq")
    other: Any = get_method("bc-discrete")
    return compared(seeds, one, other, arm or {}, baseline or {})
