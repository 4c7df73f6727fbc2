"""Steps of logs laid out by episode, and what an estimate from them is made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.evaluation.intervals import Interval
from etude.experience.logs.table import Logs

Numbers = NDArray[Any]

MEANINGLESS = 10
"""Effective episodes below which the interval of a weighted estimate means nothing."""


@dataclass(frozen=True)
class Estimate(Interval):
    """An estimate from logs with its interval.

    Args:
        effective: as how many episodes those of the logs count once they are weighted; None where nothing is weighted.
        reason: why a number stands here that nobody can trust; '' where there is no reason.
        resamples: the same from each of several resamples of the episodes, where the interval is their spread.
        members: the same of every member of the run, in order, where it was found for all of them.
    """

    effective: float | None = None
    reason: str = ""
    resamples: tuple[float, ...] = ()
    members: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON values; an unbounded end is null."""
        several = {k: list(v) for k, v in (("resamples", self.resamples), ("members", self.members)) if v}
        return {**super().to_json(), "effective_sample_size": self.effective, "reason": self.reason, **several}


@dataclass(frozen=True)
class Episodes:
    """E episodes of at most T steps.

    Shapes: rows [E, T] the row of each step, the episode's last one beyond its end; there [E, T] whether the step was
    taken; terminated [E] whether the episode ended for good, so that what follows is worth 0; rewards [E, T], 0 beyond
    the end.
    """

    rows: Numbers
    there: Numbers
    terminated: Numbers
    rewards: Numbers

    @classmethod
    def of(cls, logs: Logs) -> Episodes:
        """Those of logs."""
        starts = np.concatenate([[0], logs.ends[:-1] + 1])
        lengths = logs.ends - starts + 1
        steps = np.arange(lengths.max())
        there = steps < lengths[:, None]
        rows = np.minimum(starts[:, None] + steps, logs.ends[:, None])
        rewards = np.where(there, logs.rewards[rows].astype(np.float64), 0.0)
        return cls(rows, there, logs.terminated[logs.ends], rewards)

    @property
    def count(self) -> int:
        """E."""
        return len(self.rows)

    @property
    def horizon(self) -> int:
        """T: the steps of the longest."""
        return int(self.rows.shape[1])

    @cached_property
    def known(self) -> Numbers:
        """[E, T] whether it is known what the step earned: it was taken, or the episode had ended for good."""
        return self.there | self.terminated[:, None]

    @cached_property
    def time(self) -> Numbers:
        """[N] the step of every row in its episode."""
        found = np.zeros(int(self.rows.max()) + 1, np.int64)
        found[self.rows[self.there]] = np.nonzero(self.there)[1]
        return found

    @cached_property
    def episode(self) -> Numbers:
        """[N] the episode of every row."""
        found = np.zeros(int(self.rows.max()) + 1, np.int64)
        found[self.rows[self.there]] = np.nonzero(self.there)[0]
        return found

    def repeated(self, times: int) -> Episodes:
        """All of them so many times, each time with rows of their own: row n is at n, N + n, 2 N + n, ..."""
        rows = np.concatenate([self.rows + k * len(self.time) for k in range(times)])
        there, rewards = (np.tile(x, (times, 1)) for x in (self.there, self.rewards))
        return Episodes(rows, there, np.tile(self.terminated, times), rewards)

    def cut_early(self) -> int:
        """How many were stopped by a limit before the longest had taken its last step."""
        return int((~self.known[:, -1]).sum())


def returns_to_go(rewards: Numbers, gamma: float) -> Numbers:
    """sum_k gamma^k r_{t+k} of rewards [E, T], the same shape.

    >>> returns_to_go(np.array([[1.0, 1.0, 2.0]]), 0.5)
    array([[2., 2., 2.]])
    """
    found = np.zeros_like(rewards)
    following = np.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        following = rewards[:, t] + gamma * following
        found[:, t] = following
    return found


def student(value: float, each: Numbers, effective: float | None = None, *, level: float = 0.95) -> Estimate:
    """value +- t(n - 1) s / sqrt n, for what each of n episodes adds to it, [n].

    With one episode nothing is known about the spread, and the interval is unbounded. Below ten effective episodes the
    estimate says that its interval means nothing.
    """
    return spread(value, float(np.std(each, ddof=1) / np.sqrt(len(each))) if len(each) > 1 else np.inf, len(each),
                  effective, level=level)  # fmt: skip


def spread(value: float, error: float, count: int, effective: float | None = None, *, level: float = 0.95) -> Estimate:
    """value +- t(count - 1) error, for a standard error that was found from so many numbers."""
    from scipy.special import stdtrit

    half = float(stdtrit(max(count - 1, 1), (1 + level) / 2)) * error
    reason = ""
    if effective is not None and effective < MEANINGLESS:
        reason = f"an effective sample size of {effective:.1f} is below {MEANINGLESS}: its interval means nothing"
    return Estimate(value, value - half, value + half, level, "student", effective, reason)
