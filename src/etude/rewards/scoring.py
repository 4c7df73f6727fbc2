"""Adding up a method's rewards on a batch, and refusing numbers that cannot be rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from etude.core.batches import Episode, TokenBatch
from etude.core.errors import RewardError
from etude.core.slots import Context, Reward, TokenReward


def score(batch: TokenBatch, parts: Sequence[Reward | TokenReward], context: Context) -> TokenBatch:
    """The batch with `rewards` and `scores` filled in and components noted on its episodes.

    Rows that a reward dropped (it failed under `on_bad_reward='drop'`) are removed. Raises RewardError for a reward
    that is not finite, naming problem, component and completion.
    """
    last = (batch.action_mask * torch.arange(batch.action_mask.shape[1], device=batch.tokens.device)).argmax(1)
    rewards = batch.rewards.clone()
    for part in parts:
        if isinstance(part, TokenReward):
            placed = part.shape(batch)
        else:
            values = _checked(part, batch.episodes, part.score(batch.episodes, context))
            placed = torch.zeros_like(rewards).scatter(1, last[:, None], values.to(rewards)[:, None])
        for episode, total in zip(batch.episodes, placed.sum(1).tolist()):
            episode.scores[part.name] = episode.scores.get(part.name, 0.0) + total
            episode.total += total
        rewards = rewards + placed
    scored = batch.replace(rewards=rewards, scores=rewards.sum(1))
    kept = torch.tensor([i for i, e in enumerate(batch.episodes) if "dropped" not in e.info], dtype=torch.long)
    return scored if len(kept) == len(batch) else scored.rows(kept.to(batch.tokens.device))


def _checked(part: Reward, episodes: Sequence[Episode], values: Sequence[float]) -> Tensor:
    if len(values) != len(episodes):
        raise RewardError(f"{type(part).__name__} must return {len(episodes)} rewards, got {len(values)}.")
    clean = []
    for episode, value in zip(episodes, values):
        if "dropped" in episode.info:
            value = 0.0
        if not math.isfinite(value):
            error = RewardError(
                f"{type(part).__name__} returned {value} for problem {episode.problem.id!r}; a reward must be a finite "
                f"number. The completion was {episode.completion!r}."
            )
            error.completion = episode.completion
            raise error
        clean.append(float(value))
    return torch.tensor(clean)
