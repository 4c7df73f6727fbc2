"""The claim of famo2o: a balance for each state, against IQL with one, both handed over with all of the logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experiments.onward import OWN, UPDATES, onward
from etude.experiments.swings import MIXED
from etude.stages.handover import Handover
from etude.stages.phases import Phase

BOTH = {
    "critic.count": 2, "stages.handover.capacity": 10_000, "stages.phase.end": UPDATES / (UPDATES + OWN),
    "policy.learning.optimizer.schedule": "constant",
}  # fmt: skip
FAMILY = {
    **BOTH, "learners.balance-model.network.hidden": (64, 64), "learners.balance-model.low": 0.02,
    "learners.balance-model.high": 0.5,
}  # fmt: skip
SINGLE = {**BOTH, "actor.clone.weight.beta": 0.1}
"""Rewards here are some ten times those that the paper's balances are for."""


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of both on the way after the handover, after as many steps of their own."""
    one: Any = get_method("famo2o")
    other: Any = get_method("iql").replace(stages=(Phase(end=0.5), Handover(keep=1.0)))
    return onward(seeds, one, other, MIXED, {**FAMILY, **(arm or {})}, {**SINGLE, **(baseline or {})})
