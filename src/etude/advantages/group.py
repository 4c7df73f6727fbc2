"""Credit from comparing the completions of one problem: no critic."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.fields import NonNegative
from etude.core.slots import TokenAdvantages


def group_sum(values: Tensor, group: Tensor) -> Tensor:
    """[B] sum of `values` [B] over each row's group."""
    _, index = torch.unique(group, return_inverse=True)
    return torch.zeros(int(index.max()) + 1, dtype=values.dtype, device=values.device).index_add(0, index, values)[
        index
    ]


def group_size(group: Tensor) -> Tensor:
    """[B] number of rows in each row's group."""
    return group_sum(torch.ones_like(group, dtype=torch.float32), group)


def group_mean(values: Tensor, group: Tensor) -> Tensor:
    """[B] mean of each row's group."""
    return group_sum(values, group) / group_size(group).to(values.dtype)


def solved_share(batch: TokenBatch) -> Tensor:
    """[B] share of the episodes of each row's problem that are solved."""
    assert batch.solved is not None
    if (once := batch.once()) is not None:
        first, whose = once
        return group_mean(batch.solved[first].double(), batch.group[first])[whose]
    return group_mean(batch.solved.double(), batch.group)


def equal_groups(scores: Tensor, group: Tensor) -> Tensor:
    """[B] True where all scores of the row's group are equal, so that comparing them teaches nothing."""
    _, index = torch.unique(group, return_inverse=True)
    count = int(index.max()) + 1
    low = torch.full((count,), torch.inf, dtype=scores.dtype, device=scores.device)
    low = low.scatter_reduce(0, index, scores, "amin")
    high = torch.full_like(low, -torch.inf).scatter_reduce(0, index, scores, "amax")
    return (low == high)[index]


class GroupAdvantage(TokenAdvantages):
    """A_i = (r_i - centre) / scale, the same for every token of completion i.

    centre: 'mean' of the group; 'leave-one-out' mean of the others (RLOO, arXiv:2402.14740); 'batch' mean; 'none'.
    scale: population standard deviation of the 'group' (GRPO, arXiv:2402.03300), of the whole 'batch'
    (Lite PPO, arXiv:2508.08221) or of all rows of the same 'level'; the group's 'mean' (MaxRL, arXiv:2602.02710);
    or 'none' (Dr. GRPO, arXiv:2503.20783).
    Rows that were written, not sampled, neither count nor get credit. A group whose rewards are all equal (compared
    with each other: rounding is no spread) gets exactly 0 where it supplies centre or deviation, never 0/0; a row alone
    in its group has no others to compare with and gets 0 under 'leave-one-out'.

    Shapes: scores [B] -> advantages [B, T]. Published code divides by the sample standard deviation (n - 1) in
    places; with groups of 8 the two differ by the constant factor sqrt(7/8).

    >>> from etude.advantages.group import scaled
    >>> scaled(torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.zeros(4), "mean", "group", 0.0).tolist()
    [1.0, -1.0, -1.0, 1.0]
    """

    centre: Literal["mean", "leave-one-out", "batch", "none"] = "mean"
    scale: Literal["group", "batch", "level", "mean", "none"] = "group"
    epsilon: NonNegative = 1e-6

    def objection(self, method: object) -> str | None:
        compares = self.centre in ("mean", "leave-one-out") or self.scale in ("group", "mean")
        if compares and getattr(getattr(method, "experience", None), "size", None) == 1:
            return (
                "compares the completions of a problem with each other, and experience.size = 1 gives only one: "
                "set experience.size to 2 or more."
            )
        return None

    def __call__(self, batch: TokenBatch) -> Tensor:
        return self.of_scores(batch, batch.scores)[:, None] * batch.action_mask

    def of_scores(self, batch: TokenBatch, scores: Tensor) -> Tensor:
        """[B] advantages that the rows of a batch would have if these were the scores [B] of their episodes."""
        if (once := batch.once()) is not None:
            first, whose = once
            return self.of_scores(batch.rows(first), scores[first])[whose]
        levels = None
        if self.scale == "level":
            names = [e.problem.level for e in batch.episodes]
            levels = torch.tensor([names.index(n) for n in names], device=scores.device)
        on = batch.sampled
        if bool(on.all()):
            return scaled(scores, batch.group, self.centre, self.scale, self.epsilon, levels)
        found = torch.zeros_like(scores)
        rows = None if levels is None else levels[on]
        if bool(on.any()):
            found[on] = scaled(scores[on], batch.group[on], self.centre, self.scale, self.epsilon, rows)
        return found


def scaled(
    scores: Tensor, group: Tensor, centre: str, scale: str, epsilon: float, levels: Tensor | None = None
) -> Tensor:  # fmt: skip
    """[B] advantages of `GroupAdvantage`; `levels` [B] numbers the rows' levels."""
    mean, size = group_mean(scores, group), group_size(group).to(scores.dtype)
    centred = _centred(scores, group, mean, size, centre)
    if scale == "none":
        return centred
    if scale == "mean":
        spread, nothing = mean, mean <= 0
    elif scale == "batch":
        spread, nothing = scores.std(correction=0), (scores.min() == scores.max()).expand_as(scores)
    else:
        whose = group if scale == "group" or levels is None else levels
        spread = group_mean((scores - group_mean(scores, whose)) ** 2, whose).sqrt()
        nothing = equal_groups(scores, whose)
    return torch.where(nothing, torch.zeros_like(scores), centred / (spread + epsilon).clamp(min=1e-12))


def _centred(scores: Tensor, group: Tensor, mean: Tensor, size: Tensor, centre: str) -> Tensor:
    """Scores minus their baseline; groups that compare nothing get exactly 0."""
    if centre == "none":
        return scores
    if centre == "batch":
        return scores - scores.mean()
    centred = torch.where(equal_groups(scores, group), torch.zeros_like(scores), scores - mean)
    return centred * size / (size - 1).clamp(min=1) if centre == "leave-one-out" else centred
