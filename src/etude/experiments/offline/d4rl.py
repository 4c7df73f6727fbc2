"""The claim of d4rl: logs of who wanders through a maze, learned from by values, against cloning them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.behaviours import Wanderer
from etude.evaluation.pairs import Pair
from etude.evaluation.recording import record
from etude.experiments.arms import pairs
from etude.experiments.cells import recorded, spread
from etude.experiments.on_logs import before_and_after
from etude.experiments.swings import UPDATES, small
from etude.tasks.control.pointmaze_medium import PointMazeMedium

STEPS, PLAYED, EPSILON = 10_000, 50, 0.05
"""Logged steps of each seed at least, episodes that are played at the end, how often anything is done in the logs."""
ALLOWED = ("one-step-episodes",)
"""Who begins at the goal has arrived at once."""
MEASURE = "arrived"


class Run(NamedTuple):
    """A method on the logs of a seed."""

    arm: str
    method: Method
    seed: int


def wanderings(seed: int, steps: int = STEPS) -> dict[str, NDArray[Any]]:
    """Columns of logs [N, ...]: whole episodes from anywhere to one place after another.

    Rewards are those of the task less 1, as mazes are learned from: every step costs 1 until it has arrived.
    """
    task = PointMazeMedium(starts="drawn")
    ways, space = task.ways(), task.make([seed], 1, "spaces").action_space
    found = record(Wanderer(ways, space, EPSILON), task, seed, "logs", steps=steps)
    columns = {
        "observations": [e.observations[:-1] for e in found], "next_observations": [e.observations[1:] for e in found],
        "actions": [e.actions for e in found], "rewards": [e.rewards - 1 for e in found],
        "terminals": [e.terminations for e in found], "timeouts": [e.truncations for e in found],
    }  # fmt: skip
    return {name: np.concatenate(each) for name, each in columns.items()}


def _played(run: Run) -> list[float]:
    """The share that arrives, before and after training."""
    matters = [run.method.to_json(), UPDATES, STEPS, PLAYED, EPSILON]
    return recorded(
        f"{run.arm}-{run.seed}", matters,
        lambda: before_and_after(
            run.method, wanderings(run.seed), PointMazeMedium(), run.seed, UPDATES, PLAYED, ALLOWED
        ),
    )  # fmt: skip


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """The share that arrives, of both after as many updates, from logs of each seed's own."""
    arms = {
        "arm": small(get_method("d4rl"), **(arm or {})),
        "baseline": small(get_method("bc"), **(baseline or {})),
    }
    runs, count = [Run(f"{name}-{m.id}", m, seed) for name, m in arms.items() for seed in seeds], len(seeds)
    found = spread(_played, runs)
    mine, cloned, budget = found[:count], found[count:], [float(UPDATES)] * count
    return pairs(
        seeds, {MEASURE: [after for _, after in mine]}, {MEASURE: [after for _, after in cloned]},
        start={MEASURE: [before for before, _ in cloned]}, budgets={"updates": (budget, budget)},
    )  # fmt: skip
