"""The claim of rlpd: RLPD with mixed logs, against the same without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experience.sampling import UniformRows
from etude.experiments.onward import BEGUN, onward
from etude.experiments.swings import MIXED

OFTEN = {
    "experience.random": BEGUN, "experience.warmup": BEGUN, "experience.capacity": 10_000, "experience.updates": 4.0,
    "policy.learning.every": 4, "learners.temperature.learning.every": 4,
}  # fmt: skip
"""Four updates for each step, for a small task."""


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of both on the way, after as many steps of their own."""
    one: Any = get_method("rlpd")
    rows = {k: v for k, v in one.sampling.fields().items() if k != "share"}
    other = one.replace(sampling=UniformRows(**rows), experience=one.experience.replace(keep=0.0))
    return onward(seeds, one, other, MIXED, {**OFTEN, **(arm or {})}, {**OFTEN, **(baseline or {})})
