"""What the runs of an experiment came to: one pair for each seed, the method's side and its baseline's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from etude.core.errors import DataError

SIDES = ("arm", "baseline", "start")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Both arms with one seed.

    Args:
        arm, baseline: scores by measure; a measure that is held against a number needs no baseline.
        start: scores of the baseline before its first step, by measure.
        budgets: what was counted, `{"completions": (arm, baseline)}`.
        weights: hashes of what the two runs ended with; empty where they were not taken.
        solved: how many samples of each problem of the test set were right at the end, of the arm and of the baseline
            [problems] each; empty where that was not counted.
        data: the fingerprint of the logs that both learned from; empty where there are none.

    Raises: DataError for a score that is not finite, which no statistics can use.
    """

    seed: int
    arm: Mapping[str, float]
    baseline: Mapping[str, float] = field(default_factory=dict)
    start: Mapping[str, float] = field(default_factory=dict)
    budgets: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    weights: tuple[str, ...] = ()
    solved: tuple[Sequence[int], ...] = ()
    data: str = ""

    def __post_init__(self) -> None:
        for side in SIDES:
            for name, value in getattr(self, side).items():
                if not math.isfinite(value):
                    raise DataError(f"{name} of the {side} with seed {self.seed} is {value}: a score must be finite.")

    def to_json(self) -> dict[str, Any]:
        """JSON values, what is empty left out."""
        return {k: v for k, v in asdict(self).items() if v not in ({}, (), "")}

    @staticmethod
    def mean(seed: int, pairs: Sequence[Pair]) -> Pair:
        """Mean scores of several pairs as one, by another seed; budgets are those of a run.

        >>> Pair.mean(5, [Pair(seed=1, arm={"end": 0.1}), Pair(seed=2, arm={"end": 0.5})]).arm["end"] == 0.6 / 2
        True
        """
        arm, baseline, start = (
            {k: _mean([getattr(p, side)[k] for p in pairs]) for k in getattr(pairs[0], side)} for side in SIDES
        )
        budgets = {k: (_mean([p.budgets[k][0] for p in pairs]), _mean([p.budgets[k][1] for p in pairs]))
                   for k in pairs[0].budgets}  # fmt: skip
        return Pair(seed=seed, arm=arm, baseline=baseline, start=start, budgets=budgets)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Pair:
        """Undo `to_json`."""
        return Pair(**{**data, **{k: tuple(data.get(k, ())) for k in ("weights", "solved")}})


@dataclass(frozen=True)
class Results:
    """What both arms of an experiment came to, seed by seed in the same order.

    Args:
        arm, baseline: scores [n] by measure.
        start: scores [n] of the baseline before its first step, by measure.
        budgets: what was counted of each arm, [n] each: `{"completions": (arm, baseline)}`.
        weights: hashes of what each run ended with, [n] each.
    """

    arm: Mapping[str, Sequence[float]]
    baseline: Mapping[str, Sequence[float]]
    start: Mapping[str, Sequence[float]] = field(default_factory=dict)
    budgets: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    weights: tuple[Sequence[str], Sequence[str]] = ((), ())

    @staticmethod
    def of(pairs: Sequence[Pair]) -> Results:
        """Pairs as columns. Raises DataError if they did not measure or count the same things."""
        for what in ("arm", "baseline", "start", "budgets"):
            names = {p.seed: ", ".join(sorted(getattr(p, what))) for p in pairs}
            if len(set(names.values())) > 1:
                each = "; ".join(f"seed {seed}: {said or 'nothing'}" for seed, said in names.items())
                raise DataError(f"All pairs must have the same names in {what}, got {each}.")
        hashed = all(p.weights for p in pairs)
        arm, baseline, start = (
            {k: [getattr(p, side)[k] for p in pairs] for k in getattr(pairs[0], side)} for side in SIDES
        )
        return Results(
            arm,
            baseline,
            start,
            budgets={k: ([p.budgets[k][0] for p in pairs], [p.budgets[k][1] for p in pairs]) for k in pairs[0].budgets},
            weights=([p.weights[0] for p in pairs], [p.weights[1] for p in pairs]) if hashed else ((), ()),
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
