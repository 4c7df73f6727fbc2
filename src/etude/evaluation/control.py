"""How good a control policy is: whole episodes in environments of their own, for every member."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
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
    episodes: int | Sequence[int],
    *,
    deterministic: bool = False,
    purpose: str = "test",
    longest: int | Sequence[int] | None = None,
    side_by_side: int | None = None,
    progress: Callable[[int], None] | None = None,
    counts: Callable[[NDArray[np.int64]], NDArray[Any]] | None = None,
) -> NDArray[np.float64]:
    """Returns [members, episodes] of the loop's policy: likeliest actions, or sampled ones.

    Every environment of a member plays the same number of episodes, so that short episodes do not count more often.
    Starts and actions are drawn from the members' own seeds: before and after training they are the same.

    Args:
        episodes: of every member, or of each; where some play fewer than others nan fills their rows.
        longest: steps after which an episode is cut, of all members or of each, its return being what it has earned by
            then; once one is cut every environment of its member plays one episode only, and a warning says so. None:
            none is.
        side_by_side: environments of each member.
        progress: told how many more episodes are done.
        counts: what a reward counts after so many steps of its episode, [P, E]; None: all count the same.
    """
    population, actor = loop.population, loop.actor
    wanted = np.broadcast_to(np.asarray(episodes), (population.size,))
    limits = None if longest is None else np.broadcast_to(np.asarray(longest), (population.size,))[:, None]
    most = int(wanted.max())
    count = side_by_side or min(most, max(SIDE_BY_SIDE, most // SIDE_BY_SIDE))
    rounds = -(-wanted // count)
    environment = loop.method.policy.watch(task.make([m.seed for m in population.members], count, purpose))
    player = Player(actor, population.size, count)
    streams = [s.split("evaluation", "actions").torch for s in population.streams]
    returns: list[list[list[float]]] = [[[] for _ in range(count)] for _ in range(population.size)]
    running, age, cut = np.zeros((population.size, count)), np.zeros((population.size, count), np.int64), 0
    observations = environment.reset()
    while any(len(each) < r for member, r in zip(returns, rounds) for each in member):
        shown = torch.from_numpy(observations).to(actor.device)
        if deterministic:
            actions = player.likeliest(shown)
        else:
            parameters = player.act(shown)
            noise = torch.stack([actor.distribution.noise((count,), g) for g in streams])
            actions = actor.distribution.sample(parameters, noise.to(actor.device))
        step = environment.step(actions.cpu().numpy())
        observations = step.observations
        running += step.rewards if counts is None else step.rewards * counts(age)
        age += 1
        done = step.terminated | step.truncated
        if step.final is not None:
            player.ended(torch.from_numpy(done))
        for m, e in np.argwhere(done):
            if step.faulty is None or not step.faulty[m, e]:  # what failed is played again
                returns[m][e].append(float(running[m, e]))
                if progress is not None and len(returns[m][e]) <= rounds[m]:
                    progress(1)
            running[m, e], age[m, e] = 0.0, 0
        for m, e in np.argwhere(age == limits) if limits is not None else ():
            if not returns[m][e]:
                returns[m][e].append(float(running[m, e]))
                cut, rounds[m] = cut + 1, 1
                if progress is not None:
                    progress(1)
    environment.close()
    if cut and limits is not None:
        after = " to ".join(dict.fromkeys(f"{limit:,}" for limit in (limits.min(), limits.max())))
        _log.warning(
            "%s: %d episodes had not ended after %s steps and were cut there: their returns are what they had earned "
            "by then, and each environment played one.", task.id, cut, after,
        )  # fmt: skip
    return _rows(returns, rounds, wanted)


def _rows(
    returns: Sequence[Sequence[Sequence[float]]], rounds: NDArray[np.int64], wanted: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[members, episodes] of what each environment played, first episodes first; nan where a member played fewer."""
    played = [
        [x for each in zip(*(e[:r] for e in member)) for x in each][:w] for member, r, w in zip(returns, rounds, wanted)
    ]
    found = np.full((len(played), max(map(len, played))), np.nan)
    for row, each in zip(found, played):
        row[: len(each)] = each
    return found


@dataclass(frozen=True)
class Returns(Interval):
    """Interquartile mean over members of their mean return; `members` lists the means, in order."""

    members: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON values; an unbounded end is null."""
        return {**super().to_json(), "members": list(self.members)}


def summary(name: str, returns: NDArray[np.float64], members: Sequence[Member]) -> dict[str, Returns]:
    """Returns [members, episodes] by setting, with bootstrap intervals; under `name` itself if there is one setting."""
    means = np.nanmean(returns, 1)
    labels = list(dict.fromkeys(m.label for m in members))
    intervals = {}
    for label in labels:
        own = means[[m.label == label for m in members]]
        interval = bootstrap_interval(own)
        intervals[f"{name}/{label}" if len(labels) > 1 else name] = Returns(
            **dataclasses.asdict(interval), members=tuple(own.tolist())
        )
    return intervals
