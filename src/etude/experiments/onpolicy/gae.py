"""The claim of GAE: an intermediate lambda, against 0 and 1."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from etude.core.kinds import RolloutMethod
from etude.core.registry import get_method
from etude.core.worlds import World
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs
from etude.experiments.cells import Cell, advance

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from etude.loops.on_policy import OnPolicyLoop

MIDDLE, OTHERS = 0.96, (0.0, 1.0)
TASK, GUST, STEPS, EVERY, EPISODES = "cartpole", 20.0, 20_480, 4096, 40
"""Gusts twice as strong as the cart: a pole that stands to the end is luck, so that no arm touches the ceiling."""
RUNS = 10
"""Members that a seed stands for: the end of a single one is luck in the same way."""


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Mean return along training of GAE with lambda 0.96, against 0 and against 1, all members of one population."""
    import torch

    from etude.core.population import Member
    from etude.loops.on_policy import OnPolicyLoop
    from etude.tasks import resolve_task

    torch.set_num_threads(1)
    method = get_method("gae", World.CONTROL)
    assert isinstance(method, RolloutMethod)
    rollout: Any = method.experience
    step = rollout.steps * rollout.environments
    task: Any = dataclasses.replace(cast(Any, resolve_task(TASK)), gust=GUST)
    lambdas = (MIDDLE, *OTHERS)
    own = [RUNS * seed + run for seed in seeds for run in range(RUNS)]
    members = [Member(seed, {"advantages.lam": lam}) for lam in lambdas for seed in own]
    loop = OnPolicyLoop(method, task, members, -(-STEPS // step))
    label = "-".join(["gae", *(f"{lam:g}" for lam in lambdas), str(len(seeds))])
    curves = curves_of(loop, task, Cell(label, method, task, seeds[0], loop.steps, start=""), EVERY // step)
    loop.close()
    areas = np.trapezoid(curves, axis=0) / (len(curves) - 1)
    found = areas.reshape(len(lambdas), len(seeds), RUNS).mean(2)
    first = curves[0].reshape(len(lambdas), len(seeds), RUNS).mean(2)
    names = [f"return against lambda {lam:g}" for lam in OTHERS]
    return pairs(
        seeds, dict.fromkeys(names, found[0].tolist()), dict(zip(names, found[1:].tolist())),
        start=dict(zip(names, first[1:].tolist())),
    )  # fmt: skip


def curves_of(loop: OnPolicyLoop, task: Any, cell: Cell, every: int) -> NDArray[np.float64]:
    """[looks, members], mean returns before training and after every so many rollouts."""
    from etude.evaluation.control import play

    def look(loop: Any) -> list[float] | None:
        return play(loop, task, EPISODES).mean(1).tolist() if loop.finished % every == 0 else None

    first = play(loop, task, EPISODES).mean(1)
    lines = advance(loop, cell, look)
    return np.array([first.tolist(), *(line["watched"] for line in lines if isinstance(line["watched"], list))])
