"""The claim of wsrl: WSRL without the logs behind it, against Cal-QL that keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experiments.onward import BEGUN, OWN, UPDATES, onward
from etude.experiments.swings import MIXED

SOONER = {
    "stages.handover.warmup": BEGUN,
    "stages.handover.capacity": 10_000,
    "stages.phase.end": UPDATES / (UPDATES + OWN),
}


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of both on the way after the handover, after as many steps of their own."""
    one: Any = get_method("wsrl")
    other: Any = get_method("cal-ql-online").replace(policy=one.policy, critic=one.critic)
    return onward(seeds, one, other, MIXED, {**SOONER, **(arm or {})}, {**SOONER, **(baseline or {})})
