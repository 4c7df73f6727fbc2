"""The claim of GAE: an intermediate lambda, against 0 and 1."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

from etude.core.kinds import RolloutMethod
from etude.core.registry import get_method
from etude.core.worlds import World
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs
from etude.experiments.cells import Cell, advance

MIDDLE, OTHERS = 0.96, (0.0, 1.0)
TASK, GUST, STEPS, EPISODES = "cartpole", 20.0, 20_480, 200
"""Gusts twice as strong as the cart: a pole that stands to the end is luck, so that no arm touches the ceiling."""


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Return of GAE with lambda 0.96, against lambda 0 and against lambda 1, all members of one population."""
    import torch

    from etude.core.population import Member
    from etude.evaluation.control import play
    from etude.loops.on_policy import OnPolicyLoop
    from etude.tasks import resolve_task

    torch.set_num_threads(1)
    method = get_method("gae", World.CONTROL)
    assert isinstance(method, RolloutMethod)
    rollout: Any = method.experience
    task: Any = dataclasses.replace(cast(Any, resolve_task(TASK)), gust=GUST)
    lambdas = (MIDDLE, *OTHERS)
    members = [Member(seed, {"advantages.lam": lam}) for lam in lambdas for seed in seeds]
    loop = OnPolicyLoop(method, task, members, -(-STEPS // (rollout.steps * rollout.environments)))
    label = "-".join(["gae", *(f"{lam:g}" for lam in lambdas), str(len(seeds))])
    first = play(loop, task, EPISODES).mean(1).reshape(len(lambdas), -1)
    advance(loop, Cell(label, method, task, seeds[0], loop.steps, start=""))
    returns = play(loop, task, EPISODES).mean(1).reshape(len(lambdas), -1)
    loop.close()
    names = [f"return against lambda {lam:g}" for lam in OTHERS]
    return pairs(
        seeds, dict.fromkeys(names, returns[0].tolist()), dict(zip(names, returns[1:].tolist())),
        start=dict(zip(names, first[1:].tolist())),
    )  # fmt: skip
