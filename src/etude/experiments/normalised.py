"""Populations of control on several tasks, scored between a floor and a top that are said beforehand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from etude.core.kinds import RolloutMethod
from etude.experiments.cells import Cell, advance, by_label, spread

Numbers = NDArray[np.float64]
"""[seeds]"""


@dataclass(frozen=True)
class Ground:
    """A task of control, and how long it is trained.

    Args:
        task: its name; `changes` are fields of it.
        steps: of the environment, for each member; a multiple of every method's rollout.
        floor, top: returns that count as 0 and as 1.
        episodes: played before and after.
    """

    task: str
    steps: int
    floor: float
    top: float
    changes: Mapping[str, float] = field(default_factory=dict)
    episodes: int = 100

    def score(self, returns: Numbers) -> Numbers:
        """
        >>> Ground("pendulum", 1, floor=-1200.0, top=-200.0).score(np.array([-1200.0, -700.0])).tolist()
        [0.0, 0.5]
        """
        return (returns - self.floor) / (self.top - self.floor)


class Arm(NamedTuple):
    """A method on a ground, a member for each seed; of `watched` the means over the training are kept."""

    label: str
    method: RolloutMethod
    ground: Ground
    seeds: tuple[int, ...]
    watched: tuple[str, ...] = ()


class Played(NamedTuple):
    """What an arm came to: scores before and after, environment steps of each member, means of what was watched."""

    start: Numbers
    end: Numbers
    steps: float
    watched: dict[str, Numbers]


@dataclass(frozen=True)
class Scores:
    """A method on all grounds."""

    each: tuple[Played, ...]

    @property
    def start(self) -> list[float]:
        """Means over the grounds before the first step, seed by seed."""
        return _means([played.start for played in self.each])

    @property
    def end(self) -> list[float]:
        """And after the last."""
        return _means([played.end for played in self.each])

    @property
    def worst(self) -> list[float]:
        """The least of each seed's last scores."""
        return [float(min(each)) for each in zip(*(played.end for played in self.each))]

    @property
    def steps(self) -> float:
        """Of the environment, on all grounds."""
        return sum(played.steps for played in self.each)

    def watched(self, name: str) -> list[float]:
        """Means over the grounds."""
        return _means([played.watched[name] for played in self.each])


def _means(rows: Sequence[Numbers]) -> list[float]:
    return [float(x) for x in np.mean(rows, 0)]


def scores(
    methods: Mapping[str, RolloutMethod], grounds: Sequence[Ground], seeds: Sequence[int],
    watched: tuple[str, ...] = (),
) -> dict[str, Scores]:  # fmt: skip
    """Every method on every ground, by label.

    Args:
        watched: metrics of training to keep, of methods that log them.
    """
    arms = [Arm(k, method, ground, tuple(seeds), watched) for ground in grounds for k, method in methods.items()]
    found = by_label([arm.label for arm in arms], spread(train, arms))
    return {label: Scores(tuple(rows)) for label, rows in found.items()}


def used_steps(found: Mapping[str, Scores], pairs: int) -> dict[str, tuple[list[float], list[float]]]:
    """The budget 'environment_steps' of a pair: the most and the least of all methods, equal if all are."""
    steps = [each.steps for each in found.values()]
    return {"environment_steps": ([max(steps)] * pairs, [min(steps)] * pairs)}


def train(arm: Arm) -> Played:
    """Train a population, and play before and after."""
    import torch

    from etude.core.population import Member
    from etude.evaluation.control import play
    from etude.loops.on_policy import OnPolicyLoop
    from etude.tasks import resolve_task

    torch.set_num_threads(1)
    label, method, ground, seeds, watched = arm
    task = dataclasses.replace(cast(Any, resolve_task(ground.task)), **ground.changes)
    rollout = cast(Any, method.experience)
    count = ground.steps // (rollout.steps * rollout.environments)
    loop = OnPolicyLoop(method, task, [Member(seed) for seed in seeds], count)
    first = play(loop, task, ground.episodes).mean(1)
    lines = advance(loop, Cell(f"{label}-{ground.task}-{len(seeds)}", method, task, seeds[0], count, start=""))
    last = play(loop, task, ground.episodes).mean(1)
    loop.close()
    logged = [name for name in watched if name in lines[-1]["members"]]
    means = {name: np.mean([line["members"][name] for line in lines], 0) for name in logged}
    return Played(ground.score(first), ground.score(last), lines[-1]["environment_steps"], means)
