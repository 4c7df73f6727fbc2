"""Which episodes of logs are learned from, and how often: good ones more than others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from etude.core.fields import Count, Positive
from etude.core.log_slots import EpisodeScore
from etude.core.population import PerMember
from etude.core.sampling_slots import Drawing, Horizon, Sampling
from etude.core.transitions import Transitions
from etude.experience.logs.table import Numbers
from etude.experience.sampling import OneStep

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.experience.logged import LoggedStore

ROUNDING = 1e-6
"""Scores that differ by less, of the largest return, are equal: rewards are float32."""


class EpisodeReturn(EpisodeScore):
    """What an episode earned, undiscounted (RW, arXiv:2306.13085, eq. 4).

    Shapes: [E] -> [E].

    >>> EpisodeReturn()(np.array([3.0, -1.0]), np.zeros((2, 1))).tolist()
    [3.0, -1.0]
    """

    def __call__(self, returns: Numbers, first: Numbers) -> Numbers:
        return returns


class EpisodeAdvantage(EpisodeScore):
    """What it earned more than is usual from where it began (AW, arXiv:2306.13085, section 4.2).

        A_i = G_i - V(s_i0),    V the linear function of the first observation, with a constant, that fits returns best

    So an episode that began well by chance is not taken for a good one. It takes more episodes than an observation has
    numbers: of fewer V says every return, and all are alike.

    Shapes: [E], [E, D] -> [E].

    >>> lucky = EpisodeAdvantage()(np.array([1.0, 5.0, 3.0, 3.0]), np.array([[0.0], [2.0], [1.0], [1.0]]))
    >>> bool(np.allclose(lucky, 0))
    True
    """

    def __call__(self, returns: Numbers, first: Numbers) -> Numbers:
        seen = np.concatenate([first, np.ones((len(first), 1))], 1)
        found: Numbers = returns - seen @ np.linalg.lstsq(seen, returns, rcond=None)[0]
        return found


class Episodes(NamedTuple):
    """Where episodes of a store begin, [E], how long they are, [E], and each one's score between 0 and 1, [E]."""

    starts: Tensor
    lengths: Tensor
    scores: Tensor


class TrajectoryWeighted(Sampling):
    """Rows of better episodes are drawn more often, with replacement (arXiv:2306.13085).

        p(row of episode i) = w_i / sum_j w_j T_j,    w_i = exp(score_i / temperature)

    for episodes of T_i rows, their scores moved and scaled to [0, 1]. What is learned from rows is what was done by a
    policy that would do what the better episodes did, and any method on top of it is held to that one.

    Args:
        by: an episode's score. temperature: large: all rows alike; small: the best episode alone.

    Shapes: rows [P, N], N the batch.

    >>> TrajectoryWeighted(temperature=0.5).weights(torch.tensor([0.0, 0.5, 1.0])).log().round().tolist()
    [-2.0, -1.0, 0.0]
    """

    batch: Count = 256
    horizon: Horizon = OneStep()
    by: EpisodeScore = EpisodeAdvantage()
    temperature: Positive = 0.1

    def objection(self, method: Method) -> str | None:
        experience = method.slots()["experience"]
        if experience is not None and experience.acts:
            return f"weighs whole episodes of logs, and {type(experience).__name__} acts: set sampling=uniform-rows."
        return None

    def weights(self, scores: Tensor) -> Tensor:
        """exp((score - 1) / temperature) of scores [E], or [P, E] where members have temperatures of their own."""
        found: Tensor = ((scores[None] - 1) / self.temperature).exp()  # the best has 1: nothing is too large
        return found if isinstance(self.temperature, PerMember) else found[0]

    def episodes(self, store: LoggedStore) -> Episodes:
        """Those of a store of logs; found once."""
        if "episodes" not in self.made:
            ends = store.ends.numpy(force=True)
            starts = np.concatenate([[0], ends[:-1] + 1])
            returns = np.add.reduceat(store.rewards[0].numpy(force=True).astype(np.float64), starts)
            began = store.read(torch.from_numpy(starts)[None].to(store.device)).observations[0]
            first = began.flatten(1).numpy(force=True).astype(np.float64)
            scores = self.by(returns, first)
            span = np.ptp(scores)
            equal = span <= ROUNDING * np.abs(returns).max()  # what is left then is noise, which would decide
            scaled = (scores - scores.min()) / (1.0 if equal else span)
            self.made["episodes"] = Episodes(*map(torch.from_numpy, (starts, ends - starts + 1, scaled)))
        found: Episodes = self.made["episodes"]
        return found

    def draw(self, store: LoggedStore, draw: Drawing) -> Transitions:
        starts, lengths, scores = self.episodes(store)
        weights = self.weights(scores)
        up_to = (weights * lengths).cumsum(-1)

        def uniform(generator: Generator, count: int) -> Tensor:
            return torch.rand(count, self.batch, generator=generator, dtype=torch.float64)

        place = draw("rows", uniform) * up_to[..., -1:]
        episode = torch.searchsorted(up_to, place, right=True).clamp(max=len(starts) - 1)
        own = weights.expand(len(place), -1).gather(1, episode)
        before = up_to.expand(len(place), -1).gather(1, episode) - own * lengths[episode]
        step = ((place - before) / own).long().clamp(min=torch.zeros((), dtype=torch.long), max=lengths[episode] - 1)
        index = (starts[episode] + step).to(store.device)
        found = self.horizon.read(store, index)
        if offers := store.offers(index):
            found = found.replace(offers={**offers, **found.offers})
        return found
