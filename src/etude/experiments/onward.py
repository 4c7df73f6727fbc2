"""Logs of a pendulum, and then steps of one's own in it: what methods earn after the handover."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from etude.core.method import Method
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs
from etude.experiments.cells import recorded, spread
from etude.experiments.swings import EPISODES, PLAYED, small, swings
from etude.tasks.control.pendulum import pendulum

UPDATES, OWN, LOOKS = 3_000, 1_500, 5
"""Updates on logs, where there are any, steps of one's own, and how often these are looked at."""
SIZES = {"critic.count": 5}
BEGUN = 250
"""Steps of one's own before anything is learned from them."""


class Run(NamedTuple):
    """A method on the logs of a seed, and then in the environment."""

    arm: str
    method: Method
    noises: Sequence[float]
    seed: int


def _looked(run: Run) -> list[float]:
    """Steps of its own, then mean returns of likeliest actions: before anything was learned, and at every look."""
    return recorded(
        f"onward-{run.arm}-{run.seed}", [run.method.to_json(), list(run.noises), UPDATES, OWN, LOOKS, EPISODES, PLAYED],
        lambda: _train(run),
    )  # fmt: skip


def _train(run: Run) -> list[float]:
    import torch

    from etude.core.population import Member
    from etude.evaluation.control import play
    from etude.loops.off_policy import BLOCK, OffPolicyLoop
    from etude.tasks.control.logged import LoggedTask

    torch.set_num_threads(1)
    logged = UPDATES // BLOCK if run.method.slots()["stages"] else 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "swings.npz"
        np.savez(path, **swings(run.seed, run.noises))  # type: ignore[arg-type]  # of numpy's own stubs
        task = LoggedTask(data=str(path), environment=pendulum)
        loop = OffPolicyLoop(run.method, task, [Member(run.seed)], logged + OWN // BLOCK)
        found, every = [float(play(loop, task, PLAYED, deterministic=True).mean())], OWN // BLOCK // LOOKS
        for number in range(loop.steps):
            loop.step()
            if number >= logged and (number + 1 - logged) % every == 0:
                found.append(float(play(loop, task, PLAYED, deterministic=True).mean()))
        return [float(loop.acted), *found]


def onward(
    seeds: Sequence[int], method: Method, baseline: Method, noises: Sequence[float], settings: Mapping[str, Any],
    baseline_settings: Mapping[str, Any],
) -> list[Pair]:  # fmt: skip
    """Both methods on the same logs of each seed, then in the environment: 'area' is the mean of what the looks found,
    'return' the last of it."""
    told = {"arm": (method, settings), "baseline": (baseline, baseline_settings)}
    arms = {name: small(one, **{**SIZES, **changes}) for name, (one, changes) in told.items()}
    runs = [Run(f"{name}-{m.id}", m, noises, seed) for name, m in arms.items() for seed in seeds]
    found = spread(_looked, runs)
    both = found[: len(seeds)], found[len(seeds) :]
    measured: list[dict[str, list[float]]] = [
        {"area": [float(np.mean(x[2:])) for x in own], "return": [x[-1] for x in own]} for own in both
    ]
    before, budgets = [x[1] for x in both[1]], tuple([x[0] for x in own] for own in both)
    return pairs(
        seeds, measured[0], measured[1], start={"area": before, "return": before},
        budgets={"steps": (budgets[0], budgets[1])},
    )  # fmt: skip
