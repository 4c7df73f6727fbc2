"""The claim of dual-rl: f-DVL on mixed logs, against Gumbel regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.edit import set_values
from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experiments.offline.iql import TEMPERED
from etude.experiments.swings import MIXED, compared


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of both after as many updates, from logs of each seed's own."""
    one: Any = get_method("dual-rl")
    other: Any = set_values(one, ["value.error=gumbel"])
    return compared(seeds, one, other, MIXED, {**TEMPERED, **(arm or {})}, {**TEMPERED, **(baseline or {})})
