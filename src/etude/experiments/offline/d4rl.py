"""The claim of d4rl: logs of who wanders through a maze, learned from by values, against cloning them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.core.control import Ways
from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.behaviours import Wanderer
from etude.evaluation.pairs import Pair
from etude.evaluation.recording import record
from etude.experiments.arms import pairs
from etude.experiments.cells import recorded, spread
from etude.experiments.on_logs import Columns, before_and_after, columns_of
from etude.experiments.swings import UPDATES, small
from etude.tasks.control._pointmaze import PointMazeArrays
from etude.tasks.control.pointmaze_medium import PointMazeMedium

STEPS, PLAYED, EPSILON = 10_000, 100, 0.05
"""Logged steps of each seed at least, episodes that are played at the end, how often anything is done in the logs."""
HOMEWARD = 0.05
"""How often a wanderer chooses the task's goal on purpose, so that some of what is cloned leads there."""
ALLOWED = ("one-step-episodes",)
"""Who begins at the goal has arrived at once."""
MEASURE = "arrived"


class Run(NamedTuple):
    """A method on the logs of a seed."""

    arm: str
    method: Method
    seed: int


def homeward(ways: Ways, goal: NDArray[Any], share: float) -> Ways:
    """The same ways, with the goal so often among the places that a draw is of it on purpose in this share.

    >>> places = np.arange(8.0).reshape(4, 2)
    >>> drawn = homeward(Ways(places, max, max), places[3], 0.5).places
    >>> len(drawn), int((drawn == places[3]).all(1).sum())  # each ten times, and the goal forty times more
    (80, 50)
    """
    several = np.tile(ways.places, (10, 1))
    more = round(share / (1 - share) * len(several))
    return ways._replace(places=np.concatenate([several, np.repeat(goal[None], more, 0)]))


def wanderings(seed: int, steps: int = STEPS) -> Columns:
    """Columns of logs [N, ...]: whole episodes from anywhere to one place after another.

    Rewards are those of the task less 1, as mazes are learned from: every step costs 1 until it has arrived.
    """
    task = PointMazeMedium(starts="drawn")
    arrays = PointMazeArrays([seed], 1, "spaces", "medium")
    ways = homeward(task.ways(), arrays.maze.middles[arrays.maze.goal], HOMEWARD)
    columns = columns_of(record(Wanderer(ways, arrays.action_space, EPSILON), task, seed, "logs", steps=steps))
    return {**columns, "rewards": columns["rewards"] - 1}


def _played(run: Run) -> list[float]:
    """The share that arrives, before and after training."""
    matters = [run.method.to_json(), UPDATES, STEPS, PLAYED, EPSILON, HOMEWARD]
    return recorded(
        f"{run.arm}-{run.seed}", matters,
        lambda: before_and_after(
            run.method, wanderings(run.seed), PointMazeMedium(starts="drawn"), run.seed, UPDATES, PLAYED, ALLOWED
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
