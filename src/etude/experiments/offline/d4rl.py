"""The claim of d4rl: logs of who wanders through a maze, learned from by values, against cloning them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
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
from etude.experiments.swings import UPDATES, small
from etude.tasks.control.pointmaze_medium import PointMazeMedium

STEPS, PLAYED, EPSILON = 10_000, 50, 0.05
"""Logged steps of each seed at least, episodes that are played at the end, how often anything is done in the logs."""
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
    return recorded(f"{run.arm}-{run.seed}", matters, lambda: _train(run))


def _train(run: Run) -> list[float]:
    import torch

    from etude.core.population import Member
    from etude.evaluation.control import play
    from etude.loops.off_policy import BLOCK, OffPolicyLoop
    from etude.tasks.control.logged import LoggedTask

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "wanderings.npz"
        np.savez(path, **wanderings(run.seed))  # type: ignore[arg-type]  # of numpy's own stubs
        task = LoggedTask(data=str(path), environment=PointMazeMedium(), allow=("one-step-episodes",))
        loop = OffPolicyLoop(run.method, task, [Member(run.seed)], UPDATES // BLOCK)
        found = [float(play(loop, task, PLAYED, deterministic=True).mean())]
        for _ in range(loop.steps):
            loop.step()
        return [*found, float(play(loop, task, PLAYED, deterministic=True).mean())]


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
