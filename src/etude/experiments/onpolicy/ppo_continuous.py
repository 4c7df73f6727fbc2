"""The claim of PPO for continuous actions: normalised and in long rollouts, against PPO's defaults for control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from etude.core.kinds import RolloutMethod
from etude.core.registry import get_method
from etude.core.worlds import World
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs
from etude.experiments.cells import Cell, advance, spread

TASK, STEPS, EPISODES = "pendulum", 73 * 2048, 20
"""Environment steps of each member: 73 rollouts of the one arm, 292 of the other."""


@dataclass(frozen=True)
class Arm:
    """What a population came to: returns [seeds] before and after, environment steps of each member."""

    start: list[float]
    end: list[float]
    steps: float


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Mean return of both arms after as many steps, each a population of its own."""
    ours, baseline = spread(train, [("ppo-continuous", tuple(seeds)), ("ppo", tuple(seeds))])
    used = {"environment_steps": ([ours.steps] * len(seeds), [baseline.steps] * len(seeds))}
    return pairs(
        seeds, {"return": ours.end}, {"return": baseline.end}, start={"return": baseline.start}, budgets=used
    )  # fmt: skip


def train(job: tuple[str, tuple[int, ...]]) -> Arm:
    """Train a population of a method, a member for each seed."""
    import torch

    from etude.core.population import Member
    from etude.evaluation.control import play
    from etude.loops.on_policy import OnPolicyLoop
    from etude.tasks import resolve_task

    torch.set_num_threads(1)
    name, seeds = job
    method = get_method(name, World.CONTROL)
    assert isinstance(method, RolloutMethod)
    rollout: Any = method.experience
    task: Any = resolve_task(TASK)
    loop = OnPolicyLoop(method, task, [Member(s, {}) for s in seeds], STEPS // (rollout.steps * rollout.environments))
    first = play(loop, task, EPISODES).mean(1).tolist()
    cell = Cell(f"{name}-{len(seeds)}", method, task, seeds[0], loop.steps, start="")
    lines = advance(loop, cell)
    last = play(loop, task, EPISODES).mean(1).tolist()
    loop.close()
    return Arm(first, last, lines[-1]["environment_steps"])
