"""How good a control policy is: whole episodes in environments of their own, for every member."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from etude.core.control import ControlTask
from etude.core.population import Member
from etude.evaluation.intervals import Interval, bootstrap_interval
from etude.policies.control.actor import Player

if TYPE_CHECKING:
    from etude.evaluation.restored import Acting

_log = logging.getLogger("etude.evaluation")
SIDE_BY_SIDE = 10
"""Environments of each member that are played at a time, if there are no more than a hundred episodes."""


@torch.no_grad()
def play(
    loop: Acting,
    task: ControlTask,
    episodes: int,
    *,
    deterministic: bool = False,
    purpose: str = "test",
    longest: int | None = None,
) -> NDArray[np.float64]:
    """Returns [members, episodes] of the loop's policy: likeliest actions, or sampled ones.

    Every environment plays the same number of episodes, so that short episodes do not count more often. Starts and
    actions are drawn from the members' own seeds: before and after training they are the same.

    Args:
        longest: steps after which an episode is cut, its return being what it has earned by then; once one is cut
            every environment plays one episode only, and a warning says so. None: none is.
    """
    population, actor = loop.population, loop.actor
    count = min(episodes, max(SIDE_BY_SIDE, episodes // SIDE_BY_SIDE))
    rounds = -(-episodes // count)
    environment = loop.method.policy.watch(task.make([m.seed for m in population.members], count, purpose))
    player = Player(actor, population.size, count)
    streams = [s.split("evaluation", "actions").torch for s in population.streams]
    returns: list[list[list[float]]] = [[[] for _ in range(count)] for _ in range(population.size)]
    running, age, cut = np.zeros((population.size, count)), np.zeros((population.size, count), np.int64), 0
    observations = environment.reset()
    while any(len(each) < rounds for member in returns for each in member):
        parameters = player.act(torch.from_numpy(observations).to(actor.device))
        if deterministic:
            actions = actor.distribution.mode(parameters)
        else:
            noise = torch.stack([actor.distribution.noise((count,), g) for g in streams])
            actions = actor.distribution.sample(parameters, noise.to(actor.device))
        step = environment.step(actions.cpu().numpy())
        observations = step.observations
        running += step.rewards
        age += 1
        done = step.terminated | step.truncated
        if step.final is not None:
            player.ended(torch.from_numpy(done))
        for m, e in np.argwhere(done):
            if step.faulty is None or not step.faulty[m, e]:  # what failed is played again
                returns[m][e].append(float(running[m, e]))
            running[m, e], age[m, e] = 0.0, 0
        for m, e in np.argwhere(age == longest) if longest is not None else ():
            if not returns[m][e]:
                returns[m][e].append(float(running[m, e]))
                cut, rounds = cut + 1, 1
    environment.close()
    if cut:
        _log.warning(
            "%s: %d episodes had not ended after %d steps and were cut there: their returns are what they had earned "
            "by then, and each environment played one. `etude evaluate` plays to the end.", task.id, cut, longest,
        )  # fmt: skip
    return np.array([[x for each in zip(*(e[:rounds] for e in member)) for x in each] for member in returns])[
        :, :episodes
    ]


@dataclass(frozen=True)
class Returns(Interval):
    """Interquartile mean over members of their mean return; `members` lists the means, in order."""

    members: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON values; an unbounded end is null."""
        return {**super().to_json(), "members": list(self.members)}


def summary(name: str, returns: NDArray[np.float64], members: Sequence[Member]) -> dict[str, Returns]:
    """Returns [members, episodes] by setting, with bootstrap intervals; under `name` itself if there is one setting."""
    means = returns.mean(1)
    labels = list(dict.fromkeys(m.label for m in members))
    intervals = {}
    for label in labels:
        own = means[[m.label == label for m in members]]
        interval = bootstrap_interval(own)
        intervals[f"{name}/{label}" if len(labels) > 1 else name] = Returns(
            **dataclasses.asdict(interval), members=tuple(own.tolist())
        )
    return intervals
