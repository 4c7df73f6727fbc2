"""Six made data sets, four of numbers and two of choices: every seed draws its own, and what 0 and 100 are on each."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from etude.core.control import ControlTask
from etude.evaluation.behaviours import AnyAction
from etude.evaluation.data_measures import (
    effective_episodes,
    limits,
    pairs,
    positive_sided_variance,
    trajectory_quality,
)
from etude.evaluation.recording import record
from etude.experiments.offline.d4rl import wanderings
from etude.experiments.offline.tq_saco import mean_return
from etude.experiments.on_logs import Columns, columns_of
from etude.experiments.poles import poles
from etude.experiments.swings import swings
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from etude.tasks.control.pointmaze_medium import PointMazeMedium

TENTH = 0.1
"""Of the pendulum's rewards, as they are learned from: methods are published for some of this size."""


class World(NamedTuple):
    """What is played in, and whose returns are 0 and 100.

    Args:
        best: a seed's episodes of who 100 is: columns, or the return itself.
        scale, shift: rewards of its logs are scale times those of the task, plus shift.
        allow: faults of logs that do not matter here.
    """

    task: ControlTask
    best: Callable[[int], Columns] | float
    played: int
    scale: float = 1.0
    shift: float = 0.0
    allow: tuple[str, ...] = ()


class Made(NamedTuple):
    """A data set by its recipe."""

    name: str
    world: str
    about: str
    make: Callable[[int, float], Columns]
    """Of a seed, with so large a share of the episodes."""


def _swung(*noises: float) -> Callable[[int, float], Columns]:
    return lambda seed, share: _whole(swings(seed, noises, round(50 * share)))


def _held(*chances: float) -> Callable[[int, float], Columns]:
    return lambda seed, share: poles(seed, chances, round(200 * share))


def _whole(columns: Columns) -> Columns:
    return {"terminals": np.zeros(len(columns["rewards"]), bool), **columns}


WORLDS = {
    "pendulum": World(pendulum, lambda seed: _whole(swings(seed, (0.0,), 100)), 20, scale=TENTH),
    "maze": World(PointMazeMedium(starts="drawn"), 1.0, 50, shift=-1.0, allow=("one-step-episodes",)),
    "cart": World(cartpole, lambda seed: poles(seed, (0.0,), 100), 20, allow=("constant-rewards",)),
}
SETS = (
    Made("pendulum, good", "pendulum", "a controller by hand, torques off by 0.3 on average", _swung(0.3)),
    Made("pendulum, mixed", "pendulum", "a third each off by 0.3, 2 and 8", _swung(0.3, 2.0, 8.0)),
    Made("pendulum, bad", "pendulum", "half each off by 4 and 8", _swung(4.0, 8.0)),
    Made(
        "maze, wandering", "maze", "who goes from one place of a maze to another and seldom to the goal",
        lambda seed, share: wanderings(seed, round(10_000 * share)),
    ),
    Made(
        "cart, disturbed", "cart", "a controller that lets the cart drift; four fifths of the episodes choose by "
        "chance one time in two", _held(0.5, 0.5, 0.5, 0.5, 0.001),
    ),
    Made("cart, chance", "cart", "four fifths chance, one fifth that controller", _held(1.0, 1.0, 1.0, 1.0, 0.001)),
)  # fmt: skip
NAMED = {made.name: made for made in SETS}
APART = 90_000
"""Added to a seed for episodes that say what 0 and 100 are."""


def paid(columns: Columns, world: World) -> Columns:
    """Rewards as the task pays them, of those that are learned from."""
    return {**columns, "rewards": (columns["rewards"] - world.shift) / world.scale}


def logged(made: Made, seed: int, share: float = 1.0) -> Columns:
    """What is learned from; those of the maze come with their shift."""
    columns, world = made.make(seed, share), WORLDS[made.world]
    return {**columns, "rewards": (columns["rewards"] * world.scale).astype(np.float32)}


@cache
def ends(name: str, seed: int = 0) -> tuple[float, float]:
    """Mean returns of chance and of who 100 is, over a hundred episodes each."""
    world = WORLDS[name]
    space = world.task.make([seed], 1, "spaces").action_space
    chance = mean_return(columns_of(record(AnyAction(space), world.task, APART + seed, "chance", episodes=100)))
    best: Any = world.best
    return chance, best if isinstance(best, float) else mean_return(best(APART + seed))


def score(name: str, earned: float) -> float:
    """0 of chance, 100 of the best."""
    return 100 * trajectory_quality(earned, *ends(name))


def measures(made: Made, seed: int, share: float = 1.0) -> dict[str, float]:
    """Of a data set: how large it is, TQ, SACo beside all sets of its world, PSV, and effective episodes."""
    world = WORLDS[made.world]
    others = {m.name: paid(logged(m, seed, share), world) for m in SETS if m.world == made.world}
    own = others[made.name]
    over = np.flatnonzero(own["terminals"] | own["timeouts"])
    returns = np.diff(np.cumsum(own["rewards"], dtype=np.float64)[over], prepend=0.0)
    numbers = {k: (c["observations"], c["actions"].reshape(len(c["rewards"]), -1)) for k, c in others.items()}
    everything = [np.concatenate(column) for column in zip(*numbers.values(), strict=True)]
    bounds = limits(*everything)
    found = {
        "steps": len(own["rewards"]), "episodes": len(returns), "return": returns.mean(),
        "TQ": score(made.world, returns.mean()) / 100,
        "SACo": len(pairs(*numbers[made.name], *bounds)) / len(pairs(*everything, *bounds)),
        "PSV": positive_sided_variance(returns), "effective episodes": effective_episodes(returns),
    }  # fmt: skip
    return {k: float(v) for k, v in found.items()}
