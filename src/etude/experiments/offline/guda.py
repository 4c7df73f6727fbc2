"""The claim of guda: few logs of a maze that grew by a guide, against such that grew by chance or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experience.transforms import ScaleRewards
from etude.experiments.arms import pairs
from etude.experiments.cells import recorded, spread
from etude.experiments.on_logs import before_and_after
from etude.experiments.swings import UPDATES, small
from etude.methods.offline.guda import AnyWay, Augment, MazeMoves, TowardsGoal
from etude.tasks.control._pointmaze import PointMazeArrays, Waypoints
from etude.tasks.control.pointmaze_medium import PointMazeMedium

EPISODES, PLAYED, ROWS = 2, 100, 20_000
"""Logged episodes of each seed, episodes that are played at the end, rows that are added."""
ASTRAY = 0.8
"""The share of steps in which who knows the way pushes by chance."""
MEASURE = "arrived"
BESIDE = f"{MEASURE} beside no more rows"
NEARER = {"actor.maximize-q.scale.alpha": 0.5}
"""Of all arms: with 2.5 the critics of so few rows lead each of them astray."""
PER_STEP = ScaleRewards(shift=-1.0)
"""Of all arms: every step costs 1 until it has arrived, as mazes are learned from."""
LAYOUT: Literal["medium"] = "medium"
"""In the small one few episodes suffice, since chance leads everywhere there."""
ANYWHERE = PointMazeMedium(starts="drawn")
"""What is played: from one place all episodes of a policy arrive or none does."""


class Run(NamedTuple):
    """A method on the logs of a seed."""

    arm: str
    method: Method
    seed: int


def demonstrations(seed: int) -> dict[str, NDArray[Any]]:
    """Columns of logs [N, ...]: the first episode of each of so many environments, one after another."""
    rng, environment = np.random.default_rng(seed), PointMazeArrays([seed], EPISODES, "logs", LAYOUT)
    maze, seen, going = environment.maze, environment.reset()[0], np.ones(EPISODES, bool)
    way, goals = Waypoints(maze), np.broadcast_to(maze.middles[maze.goal], (EPISODES, 2))
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(EPISODES)]
    while going.any():
        shown = seen.astype(np.float64)
        known = way(shown[:, :2] + environment.centre, shown[:, 2:4], goals)
        by_chance = rng.uniform(-1, 1, known.shape)
        actions = np.where(rng.random((EPISODES, 1)) < ASTRAY, by_chance, known).astype(np.float32)
        step = environment.step(actions[None])
        led = step.observations[0].copy()
        if step.final is not None:
            led[(step.terminated | step.truncated)[0]] = step.final
        for e in np.flatnonzero(going):
            over, cut = step.terminated[0, e], step.truncated[0, e]
            rows[e].append((seen[e], actions[e], step.rewards[0, e], led[e], over, cut))
            going[e] = not (over or cut)
        seen = step.observations[0]
    names = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    each = zip(*(row for episode in rows for row in episode), strict=True)
    return {name: np.stack(column) for name, column in zip(names, each, strict=True)}


def _played(run: Run) -> list[float]:
    """The share that arrives, before and after training."""
    matters = [run.method.to_json(), UPDATES, EPISODES, PLAYED, ASTRAY, LAYOUT]
    return recorded(
        f"{run.arm}-{run.seed}", matters,
        lambda: before_and_after(run.method, demonstrations(run.seed), ANYWHERE, run.seed, UPDATES, PLAYED),
    )  # fmt: skip


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """The share that arrives, of all after as many updates, from logs of each seed's own."""
    guda: Any = get_method("guda")
    symmetries, guide = MazeMoves(layout=LAYOUT), TowardsGoal(layout=LAYOUT)
    grown, standard = Augment(symmetries=symmetries, guide=guide, rows=ROWS), guda.transforms[1]
    arms = {
        "arm": small(guda.replace(transforms=(grown, PER_STEP, standard)), **NEARER, **(arm or {})),
        **{
            name: small(guda.replace(id=name, transforms=(*added, PER_STEP, standard)), **NEARER, **(baseline or {}))
            for name, added in {"by-chance": (grown.replace(guide=AnyWay()),), "no-more-rows": ()}.items()
        },
    }
    runs = [Run(name, method, seed) for name, method in arms.items() for seed in seeds]
    found, count = spread(_played, runs), len(seeds)
    mine, chance, plain = (found[k * count : (k + 1) * count] for k in range(3))
    budget, after = [float(UPDATES)] * count, [b for _, b in mine]
    return pairs(
        seeds, {MEASURE: after, BESIDE: after}, {MEASURE: [b for _, b in chance], BESIDE: [b for _, b in plain]},
        start={MEASURE: [a for a, _ in chance], BESIDE: [a for a, _ in plain]}, budgets={"updates": (budget, budget)},
    )  # fmt: skip
