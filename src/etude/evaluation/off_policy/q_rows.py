"""What FQE learns from: rows of logs, what a policy does there, and what is subtracted from a Q and bounds it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etude.evaluation.off_policy.episodes import Episodes, Numbers, returns_to_go


@dataclass(frozen=True)
class Acts:
    """What a policy does in the states of logs, S actions in each with their chances: all choices, or some draws.

    Shapes: observations, following [N, D]; actions [N, A] those of the logs; now, then [N, S, A] what the policy does
    there and in what followed, now_chances, then_chances [N, S]. Choices are vectors with a single 1, numbers in
    [-1, 1].
    """

    observations: Tensor
    actions: Tensor
    now: Tensor
    now_chances: Tensor
    following: Tensor
    then: Tensor
    then_chances: Tensor
    choices: bool = False


@dataclass(frozen=True)
class Rows:
    """Everything that is learned from, as one table.

    Shapes: x, y [N, D + 1] what is seen, scaled, and t / T, there and in what followed; reward, live [N]; b [N] and
    b_then [N] what is subtracted; low, high [N] between which what followed is worth, above b_then; all in units of
    `scale`.
    """

    acts: Acts
    x: Tensor
    y: Tensor
    reward: Tensor
    live: Tensor
    b: Tensor
    b_then: Tensor
    low: Tensor
    high: Tensor
    scale: float


def rows_of(episodes: Episodes, acts: Acts, gamma: float, line: Numbers, scale: float) -> Rows:
    """One table, scaled."""
    horizon, time = episodes.horizon, episodes.time
    terminated = np.zeros(len(time), bool)
    terminated[episodes.rows[:, -1]] = episodes.terminated
    live = ~terminated & (time + 1 < horizon)
    mean, deviation = acts.observations.mean(0), acts.observations.std(0).clamp(min=1e-6)

    def seen(values: Tensor, t: Numbers) -> Tensor:
        return torch.cat([(values - mean) / deviation, torch.as_tensor(t / horizon).float()[:, None]], -1)

    def number(values: Numbers) -> Tensor:
        return torch.as_tensor(values / scale).float()

    rewards = np.zeros(len(time))
    rewards[episodes.rows[episodes.there]] = episodes.rewards[episodes.there]
    low, high = limits(episodes, gamma)
    more = max(abs(low), abs(high)) or 1.0  # a fit errs, and others may find other rewards
    return Rows(
        acts, seen(acts.observations, time), seen(acts.following, time + 1), number(rewards),
        torch.as_tensor(live).float(), number(line[time]), number(line[time + 1] * live),
        number(low - more - line[time + 1]), number(high + more - line[time + 1]), scale,
    )  # fmt: skip


def limits(episodes: Episodes, gamma: float) -> tuple[float, float]:
    """What is earned at least and at most if rewards are like those of the logs.

    At each of T steps that is as little or as much as one of them, or 0 where episodes end early.
    """
    rewards = episodes.rewards[episodes.there]
    low, high = float(rewards.min()), float(rewards.max())
    if episodes.terminated.any():
        low, high = min(low, 0.0), max(high, 0.0)
    steps = float((gamma ** np.arange(episodes.horizon)).sum())
    return steps * low, steps * high


def baseline(episodes: Episodes, gamma: float) -> tuple[Numbers, float]:
    """b(t) [T + 1], which is smooth in t, and how far returns are from it: least squares of returns to go on 1 and

    1 + gamma + ... + gamma^(T - 1 - t)
    """
    left = returns_to_go(np.ones((1, episodes.horizon)), gamma)[0]
    left = np.concatenate([left, [0.0]])
    columns = np.stack([np.ones_like(left), left], 1)
    goes = returns_to_go(episodes.rewards, gamma)[episodes.there]
    at = np.nonzero(episodes.there)[1]
    found = np.linalg.lstsq(columns[at], goes, rcond=None)[0]
    line: Numbers = columns @ found
    scale = float(np.std(goes - line[at]))
    return line, scale if scale > 1e-9 else max(1.0, float(np.abs(goes).max()))


def worth(rows: Rows, gamma: float) -> Tensor:
    """[N] what a step adds above the line: r + gamma b(t + 1) - b(t)."""
    return rows.reward + gamma * rows.b_then - rows.b
