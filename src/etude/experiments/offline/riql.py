"""The claim of riql: RIQL on logs in which rows are wrong, against IQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experience.corrupt import COLUMNS, Corrupt
from etude.experiments.arms import pairs
from etude.experiments.offline.iql import TEMPERED
from etude.experiments.swings import MEASURE, MIXED, UPDATES, compared

WIDE = {"critic.backup.low": -2000.0}
"""Below any value of the pendulum: nothing is cut."""


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of both after as many updates, from corrupted logs of each seed's own, averaged over what is wrong."""
    one: Any = get_method("riql")
    other: Any = get_method("iql")
    found = {}
    for what in COLUMNS:
        wrong = Corrupt(what=what)  # type: ignore[arg-type]  # of the names that it takes
        found[what] = compared(
            seeds, one.replace(transforms=(wrong, *one.transforms)), other.replace(transforms=(wrong,)), MIXED,
            {**TEMPERED, **WIDE, **(arm or {})}, {**TEMPERED, **(baseline or {})},
        )  # fmt: skip
    budget = [float(UPDATES * len(COLUMNS))] * len(seeds)
    return pairs(
        seeds, _scores(found, "arm"), _scores(found, "baseline"), start=_scores(found, "start"),
        budgets={"updates": (budget, budget)},
    )  # fmt: skip


def _scores(found: Mapping[str, Sequence[Pair]], side: str) -> dict[str, list[float]]:
    """By measure, seed by seed."""
    own = {what: [getattr(pair, side)[MEASURE] for pair in each] for what, each in found.items()}
    return {
        MEASURE: [sum(each) / len(each) for each in zip(*own.values(), strict=True)],
        f"{MEASURE} under dynamics": own["dynamics"],
    }
