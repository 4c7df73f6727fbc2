"""The claim of bcq: BCQ on mixed logs, against cloning them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experiments.swings import MIXED, compared


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of both after as many updates, from logs of each seed's own."""
    one: Any = get_method("bcq")
    other: Any = get_method("bc")
    return compared(seeds, one, other, MIXED, arm or {}, baseline or {})
