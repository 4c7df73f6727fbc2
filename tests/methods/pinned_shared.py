"""What the pinned formulas of several methods share: means, deviations, clips, aggregations, of the library nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from pinned_world import World
from torch import Tensor

EPSILON = 1e-6
"""Added to what rewards are divided by."""
Losses = dict[int, Tensor]
"""By row, a loss for each of its learned tokens."""


# From losses per token to one number


def token_mean(losses: Losses) -> Tensor:
    return sum(x.sum() for x in losses.values()) / sum(len(x) for x in losses.values())


def sequence_mean(losses: Losses) -> Tensor:
    return sum(x.sum() / len(x) for x in losses.values()) / len(losses)


def summed(losses: Losses, w: World) -> Tensor:
    """Dr. GRPO's and RLOO's: sums over tokens, divided by the number of rows and the limit of length."""
    return sum(x.sum() for x in losses.values()) / (len(losses) * w.limit)


# What several methods share


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)


def deviation(values: Iterable[float]) -> float:
    values = list(values)
    return math.sqrt(mean((v - mean(values)) ** 2 for v in values))


def standardised(scores: dict[int, float], w: World, epsilon: float = EPSILON) -> dict[int, float]:
    """GRPO's advantages: (r - mean) / std over the completions of a problem, 0 where all are equal."""
    found = {}
    for i in scores:
        own = [scores[j] for j in w.group(i, scores)]
        found[i] = 0.0 if max(own) == min(own) else (scores[i] - mean(own)) / (deviation(own) + epsilon)
    return found


def centred(scores: dict[int, float], w: World) -> dict[int, float]:
    return {i: scores[i] - mean(scores[j] for j in w.group(i, scores)) for i in scores}


def left_out(scores: dict[int, float], w: World) -> dict[int, float]:
    """r less the mean of the others of its problem."""
    return {i: scores[i] - mean(scores[j] for j in w.group(i, scores) if j != i) for i in scores}


def differing(scores: dict[int, float], w: World) -> dict[int, float]:
    """Without the problems of which all completions are worth the same."""
    return {i: s for i, s in scores.items() if len({scores[j] for j in w.group(i, scores)}) > 1}


def paid(w: World) -> dict[int, float]:
    return {i: w.rewards[i] for i in range(w.count) if i not in w.written}


def clipped(w: World, i: int, advantage: float | Tensor, low: float = 0.2, high: float = 0.2) -> Tensor:
    """-min(rho A, clip(rho) A) token by token, as cases."""
    rho = (w.of("new", i) - w.of("old", i)).exp()
    a = torch.as_tensor(advantage, dtype=torch.float64).expand_as(rho)
    stopped = ((a > 0) & (rho > 1 + high)) | ((a < 0) & (rho < 1 - low))
    edge = torch.where(a > 0, a.new_tensor(1 + high), a.new_tensor(1 - low))
    return -a * torch.where(stopped, edge, rho)


def surrogates(w: World, advantages: dict[int, float], low: float = 0.2, high: float = 0.2) -> Losses:
    return {i: clipped(w, i, a, low, high) for i, a in advantages.items()}


def likelihoods(w: World, advantages: dict[int, float]) -> Losses:
    """REINFORCE's -A log pi."""
    return {i: -a * w.of("new", i) for i, a in advantages.items()}


def k3(w: World, i: int) -> Tensor:
    """r - log r - 1, r = ref / pi."""
    d = w.of("ref", i) - w.of("new", i)
    return d.exp() - d - 1


def log_ratio(w: World, i: int) -> Tensor:
    """log pi / pi_old of a whole completion."""
    return (w.of("new", i) - w.of("old", i)).sum()


def overlong(w: World, i: int) -> float:
    """DAPO's punishment: nothing up to 8 of 10 tokens, then falling to -1."""
    if i in w.cut:
        return -1.0
    free, buffer = 0.8 * w.limit, 0.2 * w.limit
    return -min(1.0, max(0.0, w.lengths[i] - free) / buffer)


def dapo_scores(w: World) -> dict[int, float]:
    return differing({i: r + overlong(w, i) for i, r in paid(w).items()}, w)
