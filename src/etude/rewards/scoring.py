"""Adding up a method's rewards on a batch, and refusing numbers that cannot be rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from etude.advantages.group import episode_sum
from etude.core.batches import TokenBatch
from etude.core.episodes import Episode
from etude.core.errors import RewardError
from etude.core.slots import Context, GroupReward, Reward, TokenReward

NO_REWARD = "no reward applies"
"""What `episode.info["dropped"]` says of an episode that no reward applies to: nothing failed."""


def score(batch: TokenBatch, parts: Sequence[Any], context: Context) -> TokenBatch:
    """The batch with `rewards` and `scores` filled in and components noted on its episodes.

    Parts are asked in their order, and each sees in both what those before it paid; whole episodes are judged first.
    Where an episode has several rows, they are paid where they were said, whole episodes on the last row; `scores` are
    the episode's, and in the end every row has on its last action what the later ones are paid: what is still to come.
    Rows without a reward are removed, see `outcomes`. Raises RewardError for a reward that is not finite, naming
    problem, component and completion.
    """
    batch, judged = outcomes(batch, parts, context)
    if not len(batch):
        return batch
    last = (batch.action_mask * torch.arange(batch.action_mask.shape[1], device=batch.tokens.device)).argmax(1)
    batch = batch.replace(scores=_sums(batch.rewards, batch))
    for place, part in enumerate(parts):
        exact = None
        if isinstance(part, GroupReward):
            batch = batch if batch.outcomes is not None else batch.replace(outcomes=batch.scores)
            exact = rescored(part, batch, context)
            values = exact - batch.scores
        elif isinstance(part, TokenReward):
            batch = part.marked(batch, context)
            placed = finite(part, batch, part.shape_in(batch, context))
        else:
            values = judged[place].nan_to_num(0.0).to(batch.rewards)
        if not isinstance(part, TokenReward):
            values = values if batch.once() is None else values * batch.ends()
            placed = torch.zeros_like(batch.rewards).scatter(1, last[:, None], values[:, None])
        _note(part, batch, placed, judged.get(place))
        rewards = batch.rewards + placed
        batch = batch.replace(rewards=rewards, scores=_sums(rewards, batch) if exact is None else exact)
    return batch if batch.once() is None else batch.replace(rewards=_with_later(batch, last))


def _with_later(batch: TokenBatch, last: Tensor) -> Tensor:
    """[B, T] the rewards, with those of the later rows of an episode on each row's last action token [B]."""
    assert batch.episode is not None
    rewards, ahead = batch.rewards.clone(), dict[int, float]()
    own = batch.rewards.double().sum(1).tolist()
    for row in range(len(batch) - 1, -1, -1):
        episode = int(batch.episode[row])
        rewards[row, last[row]] += ahead.get(episode, 0.0)
        ahead[episode] = ahead.get(episode, 0.0) + own[row]
    return rewards


def outcomes(batch: TokenBatch, parts: Sequence[Any], context: Context) -> tuple[TokenBatch, dict[int, Tensor]]:
    """The rows that have a reward, and what each part that scores whole episodes says of them.

    A row has none if a part failed on it under `on_bad_reward='drop'`, or if some part does not apply to it and no
    part that judges outcomes does. `episode.info["dropped"]` says which. Parts are not asked about rows that go on in
    a later step, which stay, with a reward of 0.

    Returns: the rows left, and by place among `parts` their rewards [B] in float64, nan where a part does not apply.
    """
    once, episodes = batch.once(), batch.wholes()
    given = {i: _given(p, episodes, context) for i, p in _whole(parts)}
    if once is not None:
        given = {i: v[once[1].cpu()] for i, v in given.items()}
    declined, judged = torch.zeros(len(batch), dtype=torch.bool), ~batch.finished.cpu()
    judged |= any(isinstance(p, TokenReward) and p.judges for p in parts)
    for place, part in _whole(parts):
        declined |= given[place].isnan()
        judged |= ~given[place].isnan() & part.judges
    for row in (declined & ~judged).nonzero()[:, 0].tolist():
        batch.episodes[row].info.setdefault("dropped", NO_REWARD)
    kept = torch.tensor([i for i, e in enumerate(batch.episodes) if "dropped" not in e.info], dtype=torch.long)
    if len(kept) < len(batch):
        batch, given = batch.rows(kept.to(batch.tokens.device)), {i: v[kept] for i, v in given.items()}
    return batch, given


def _given(part: Reward, episodes: Sequence[Episode], context: Context) -> Tensor:
    """[B] a part's rewards in float64, nan where it does not apply or the episode goes on in a later step."""
    ended = [i for i, e in enumerate(episodes) if not e.unfinished]
    values = torch.full((len(episodes),), math.nan, dtype=torch.float64)
    if ended:
        asked = [episodes[i] for i in ended]
        values[ended] = checked(part, asked, part.score(asked, context))
    return values


def _whole(parts: Sequence[Any]) -> list[tuple[int, Reward]]:
    return [(i, part) for i, part in enumerate(parts) if not isinstance(part, (TokenReward, GroupReward))]


def _note(part: Reward | TokenReward | GroupReward, batch: TokenBatch, placed: Tensor, values: Tensor | None) -> None:
    """Leave a part's share of the reward on the episodes that it applies to, and that have ended."""
    totals, once = placed.sum(1), batch.once()
    if once is not None:
        totals = episode_sum(totals, batch)[once[0]]
        values = None if values is None else values[once[0].cpu()]
    episodes = batch.wholes()
    applies = [not e.unfinished for e in episodes] if values is None else (~values.isnan()).tolist()
    column = getattr(part, "column", "") or part.name
    for episode, total, noted in zip(episodes, totals.tolist(), applies):
        if noted:
            episode.scores[column] = episode.scores.get(column, 0.0) + total
            episode.total += total
            episode.outcome += total if getattr(part, "judges", False) else 0.0


def _sums(rewards: Tensor, batch: TokenBatch) -> Tensor:
    """[B] of each row's episode; in float64 on the way, so that equal rewards at different places have equal sums."""
    return episode_sum(rewards.double().sum(1), batch).to(rewards.dtype)


def rescored(part: GroupReward, batch: TokenBatch, context: Context) -> Tensor:
    """What a part makes of the scores so far. Raises RewardError unless it is one finite number per row."""
    scores = part.rescore_in(batch, context)
    if scores.shape != batch.scores.shape:
        raise RewardError(
            f"{type(part).__name__} must return one score per row, {tuple(batch.scores.shape)}, "
            f"got {tuple(scores.shape)}."
        )
    bad = (~torch.isfinite(scores)).nonzero()
    if len(bad):
        raise _refused(part, float(scores[bad[0, 0]]), batch.episodes[int(bad[0, 0])])
    return scores.to(batch.scores)


def checked(part: Reward, episodes: Sequence[Episode], values: Sequence[float | None]) -> Tensor:
    """A part's rewards [B] in float64, nan where they are None or dropped. Raises RewardError for anything else."""
    if not hasattr(values, "__len__") or len(values) != len(episodes):
        got = len(values) if hasattr(values, "__len__") else repr(values)
        raise RewardError(f"{type(part).__name__} must return {len(episodes)} rewards, got {got}.")
    clean = []
    for episode, value in zip(episodes, values):
        if value is None or "dropped" in episode.info:
            value = math.nan
        elif isinstance(value, str) or not hasattr(value, "__float__") or not math.isfinite(value):
            raise _refused(part, value, episode)
        clean.append(float(value))
    return torch.tensor(clean, dtype=torch.float64)


def finite(part: TokenReward, batch: TokenBatch, placed: Tensor) -> Tensor:
    """A part's rewards [B, T]. Raises RewardError unless there is one finite number per token."""
    if placed.shape != batch.rewards.shape:
        shapes = tuple(batch.rewards.shape), tuple(placed.shape)
        raise RewardError(f"{type(part).__name__} must return rewards of shape {shapes[0]}, got {shapes[1]}.")
    bad = (~torch.isfinite(placed)).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise _refused(part, float(placed[row, column]), batch.episodes[row])
    return placed


def _refused(part: Reward | TokenReward | GroupReward, value: object, episode: Episode) -> RewardError:
    error = RewardError(
        f"{type(part).__name__} returned {value!r} for problem {episode.problem.id!r}; a reward must be a finite "
        f"number. The completion was {episode.completion!r}."
    )
    error.completion = episode.completion
    return error
