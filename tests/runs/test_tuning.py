"""Which setting of a sweep an experiment of a claim's own is tuned to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from etude.core.claims import Claim, Direction, Measure
from etude.evaluation.pairs import Pair
from etude.runs.tuning import tune_own


def experiment(seeds: Sequence[int], arm: Mapping[str, float], baseline: Mapping[str, float]) -> list[Pair]:
    """More of the rate is less cost, and more reward; the arm spends one more."""
    return [
        Pair(
            seed=seed,
            arm={"cost": 10 - arm["rate"], "reward": arm["rate"]},
            baseline={"cost": 9 - baseline["rate"], "reward": baseline["rate"]},
        )
        for seed in seeds
    ]


@pytest.mark.parametrize(
    ("learned_on", "direction", "best"),
    [("reward", "lower", 3.0), ("cost", "lower", 1.0), (None, "lower", 3.0), (None, "higher", 1.0)],
)
def test_the_best_is_by_what_must_be_learned_or_else_by_what_decides(
    learned_on: str | None, direction: Direction, best: float
) -> None:
    claim = Claim(
        statement="It costs less.",
        task="compose",
        measures=(Measure(name="cost", direction=direction), Measure(name="reward", role="mechanism")),
        learned_on=learned_on,
        sweep={"rate": (1.0, 2.0, 3.0)},
    )
    assert tune_own(experiment, claim)["best"] == {"arm": {"rate": best}, "baseline": {"rate": best}}
