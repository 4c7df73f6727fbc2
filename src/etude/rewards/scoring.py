"""Adding up a method's rewards on a batch, and refusing numbers that cannot be rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from etude.core.batches import Episode, TokenBatch
from etude.core.errors import RewardError
from etude.core.slots import Context, GroupReward, Reward, TokenReward


def score(batch: TokenBatch, parts: Sequence[Any], context: Context) -> TokenBatch:
    """The batch with `rewards` and `scores` filled in and components noted on its episodes.

    Rows that a reward dropped (it failed under `on_bad_reward='drop'`) are removed. Raises RewardError for a reward
    that is not finite, naming problem, component and completion.
    """
    last = (batch.action_mask * torch.arange(batch.action_mask.shape[1], device=batch.tokens.device)).argmax(1)
    rewards, exact = batch.rewards.clone(), None
    for part in parts:
        if isinstance(part, GroupReward):
            so_far = batch.replace(rewards=rewards, scores=_sums(rewards))
            exact = _rescored(part, so_far)
            change = exact - so_far.scores
            placed = torch.zeros_like(rewards).scatter(1, last[:, None], change[:, None])
        elif isinstance(part, TokenReward):
            placed = _finite(part, batch, part.shape_in(batch, context))
        else:
            values = _checked(part, batch.episodes, part.score(batch.episodes, context))
            placed = torch.zeros_like(rewards).scatter(1, last[:, None], values.to(rewards)[:, None])
        for episode, total in zip(batch.episodes, placed.sum(1).tolist()):
            episode.scores[part.name] = episode.scores.get(part.name, 0.0) + total
            episode.total += total
        rewards, exact = rewards + placed, exact if isinstance(part, GroupReward) else None
    scored = batch.replace(rewards=rewards, scores=_sums(rewards) if exact is None else exact)
    kept = torch.tensor([i for i, e in enumerate(batch.episodes) if "dropped" not in e.info], dtype=torch.long)
    return scored if len(kept) == len(batch) else scored.rows(kept.to(batch.tokens.device))


def _sums(rewards: Tensor) -> Tensor:
    """[B] in float64 on the way, so that equal rewards at different places have equal sums."""
    return rewards.double().sum(1).to(rewards.dtype)


def _rescored(part: GroupReward, batch: TokenBatch) -> Tensor:
    """Refuse scores that are not one finite number per row."""
    scores = part.rescore(batch)
    if scores.shape != batch.scores.shape:
        raise RewardError(
            f"{type(part).__name__} must return one score per row, {tuple(batch.scores.shape)}, "
            f"got {tuple(scores.shape)}."
        )
    bad = (~torch.isfinite(scores)).nonzero()
    if len(bad):
        raise _refused(part, float(scores[bad[0, 0]]), batch.episodes[int(bad[0, 0])])
    return scores.to(batch.scores)


def _checked(part: Reward, episodes: Sequence[Episode], values: Sequence[float]) -> Tensor:
    if not hasattr(values, "__len__") or len(values) != len(episodes):
        got = len(values) if hasattr(values, "__len__") else repr(values)
        raise RewardError(f"{type(part).__name__} must return {len(episodes)} rewards, got {got}.")
    clean = []
    for episode, value in zip(episodes, values):
        if "dropped" in episode.info:
            value = 0.0
        if isinstance(value, str) or not hasattr(value, "__float__") or not math.isfinite(value):
            raise _refused(part, value, episode)
        clean.append(float(value))
    return torch.tensor(clean)


def _finite(part: TokenReward, batch: TokenBatch, placed: Tensor) -> Tensor:
    if placed.shape != batch.rewards.shape:
        shapes = tuple(batch.rewards.shape), tuple(placed.shape)
        raise RewardError(f"{type(part).__name__} must return rewards of shape {shapes[0]}, got {shapes[1]}.")
    bad = (~torch.isfinite(placed)).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise _refused(part, float(placed[row, column]), batch.episodes[row])
    return placed


def _refused(part: Reward | TokenReward | GroupReward, value: Any, episode: Episode) -> RewardError:
    error = RewardError(
        f"{type(part).__name__} returned {value!r} for problem {episode.problem.id!r}; a reward must be a finite "
        f"number. The completion was {episode.completion!r}."
    )
    error.completion = episode.completion
    return error
