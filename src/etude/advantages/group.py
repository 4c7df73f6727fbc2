"""Credit from comparing the completions of one problem: no critic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.fields import NonNegative
from etude.core.part import Part, upgraded
from etude.core.slots import TokenAdvantages
from etude.core.transitions import Transitions
from etude.core.worlds import World

if TYPE_CHECKING:
    from etude.core.method import Method

TOKENS = frozenset({World.LANGUAGE, World.ENUMERABLE})
"""Worlds whose problems have several completions."""


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


def group_min(values: Tensor, group: Tensor) -> Tensor:
    """[B] smallest value of each row's group."""
    return _extreme(values, group, "amin")


def group_max(values: Tensor, group: Tensor) -> Tensor:
    """[B] largest value of each row's group."""
    return _extreme(values, group, "amax")


def _extreme(values: Tensor, group: Tensor, which: Literal["amin", "amax"]) -> Tensor:
    _, index = torch.unique(group, return_inverse=True)
    start = values.new_zeros(int(index.max()) + 1)
    return start.scatter_reduce(0, index, values, which, include_self=False)[index]


def of_episodes(function: Callable[..., Tensor], batch: TokenBatch, *values: Tensor) -> Tensor:
    """[B] `function(*values, group)` of the batch's episodes, each counted once, for every row of theirs.

    Args:
        values: [B] each, the same on all rows of an episode.
    """
    if (once := batch.once()) is None:
        return function(*values, batch.group)
    first, whose = once
    return function(*(v[first] for v in values), batch.group[first])[whose]


def episode_sum(values: Tensor, batch: TokenBatch) -> Tensor:
    """[B] sum of `values` [B] over the rows of each row's episode: of log-probabilities, that of its whole course."""
    if (once := batch.once()) is None:
        return values
    first, whose = once
    return values.new_zeros(len(first)).index_add(0, whose, values)[whose]


def solved_share(batch: TokenBatch) -> Tensor:
    """[B] share of the episodes of each row's problem that are solved."""
    assert batch.solved is not None
    return of_episodes(group_mean, batch, batch.solved.double())


def equal_groups(scores: Tensor, group: Tensor) -> Tensor:
    """[B] True where all scores of the row's group are equal, so that comparing them teaches nothing."""
    return group_min(scores, group) == group_max(scores, group)


class Centre(Part, abstract=True):
    """What a score is held against: the baseline that is subtracted from it."""

    slot = "centre"
    worlds: ClassVar[frozenset[World]] = TOKENS
    within_group: ClassVar[bool] = True
    """Whether it compares the completions of one problem, so that there must be several."""

    def __call__(self, scores: Tensor, group: Tensor) -> Tensor:
        """The baseline [B] of scores [B] whose rows belong to the groups [B]."""
        raise NotImplementedError

    def centred(self, scores: Tensor, group: Tensor) -> Tensor:
        """[B] scores minus their baseline."""
        return scores - self(scores, group)

    def of_steps(self, batch: Transitions, values: Tensor) -> Tensor:
        """The baseline of `values` [P, T, E] in control, where nothing has groups; broadcasts to their shape."""
        raise NotImplementedError


class GroupMean(Centre):
    """Mean score of the row's group: b_i = mean_j r_j (GRPO, arXiv:2402.03300; Dr. GRPO, Lite PPO, MaxRL).

    In a group whose scores are all equal (compared with each other: rounding is no difference) it is the score itself,
    so that centred scores are exactly 0. Shapes: scores, group [B] -> [B].

    >>> GroupMean().centred(torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.zeros(4)).tolist()
    [0.5, -0.5, -0.5, 0.5]
    """

    def __call__(self, scores: Tensor, group: Tensor) -> Tensor:
        return torch.where(equal_groups(scores, group), scores, group_mean(scores, group))


class LeaveOneOut(Centre):
    """Mean score of the others in the row's group: b_i = (sum_j r_j - r_i) / (n - 1) (RLOO, arXiv:2402.14740).

    r_i - b_i = (r_i - mean r) n / (n - 1): the group's mean without what a row says about itself, hence unbiased. 0 in
    a group whose scores are all equal, and for a row that is alone in its group. Shapes: scores, group [B] -> [B].

    >>> LeaveOneOut().centred(torch.tensor([3.0, 0.0, 0.0]), torch.zeros(3)).tolist()
    [3.0, -1.5, -1.5]
    """

    def __call__(self, scores: Tensor, group: Tensor) -> Tensor:
        return scores - self.centred(scores, group)

    def centred(self, scores: Tensor, group: Tensor) -> Tensor:
        size = group_size(group).to(scores.dtype)
        return GroupMean().centred(scores, group) * size / (size - 1).clamp(min=1)


class BatchMean(Centre):
    """Mean score of the whole batch, in control of the member's rollout: b = mean r (REINFORCE; Williams, 1992).

    Shapes: scores [B] -> [B]; of values [P, T, E]: [P, 1, 1], over the steps that count.

    >>> BatchMean().centred(torch.tensor([1.0, 0.0, 0.0, 3.0]), torch.tensor([0, 0, 1, 1])).tolist()
    [0.0, -1.0, -1.0, 2.0]
    """

    worlds: ClassVar[frozenset[World]] = frozenset()
    within_group: ClassVar[bool] = False

    def __call__(self, scores: Tensor, group: Tensor) -> Tensor:
        return scores.mean().expand_as(scores)

    def of_steps(self, batch: Transitions, values: Tensor) -> Tensor:
        return batch.mean(values)[:, None, None]


class Scale(Part, abstract=True):
    """What centred scores are divided by, plus `epsilon`; what it finds no spread in gets exactly 0, never 0/0."""

    slot = "scale"
    worlds: ClassVar[frozenset[World]] = TOKENS
    within_group: ClassVar[bool] = False
    """As of `Centre`."""
    epsilon: NonNegative = 1e-6

    def whose(self, batch: TokenBatch) -> Tensor:
        """[B] numbers: rows with the same one are compared with each other."""
        return batch.group

    def spread(self, scores: Tensor, whose: Tensor) -> tuple[Tensor, Tensor]:
        """What scores [B] are divided by, as a number or [B], and [B] where there is nothing to divide by."""
        raise NotImplementedError

    def scaled(self, centred: Tensor, scores: Tensor, whose: Tensor) -> Tensor:
        """[B] centred scores [B] over the spread of the scores [B] that they came from."""
        spread, nothing = self.spread(scores, whose)
        return torch.where(nothing, torch.zeros_like(scores), centred / (spread + self.epsilon).clamp(min=1e-12))


class GroupStd(Scale):
    """Population standard deviation of the row's group: sqrt(mean_j (r_j - mean r)^2) (GRPO, arXiv:2402.03300).

    Published code divides by the sample standard deviation (n - 1) in places; with groups of 8 the two differ by the
    constant factor sqrt(7/8). Shapes: scores, whose [B] -> [B].

    >>> GroupStd().spread(torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.zeros(4))[0].tolist()
    [0.5, 0.5, 0.5, 0.5]
    """

    within_group: ClassVar[bool] = True

    def spread(self, scores: Tensor, whose: Tensor) -> tuple[Tensor, Tensor]:
        return group_mean((scores - group_mean(scores, whose)) ** 2, whose).sqrt(), equal_groups(scores, whose)


class GroupSampleStd(GroupStd):
    """Sample standard deviation of the row's group: sqrt(sum_j (r_j - mean r)^2 / (n - 1)), as published code has it.

    Shapes: scores, whose [B] -> [B]. A group of one has none, and counts as equal.

    >>> round(GroupSampleStd().spread(torch.tensor([1.0, 0.0, 1.0, 0.0, 0.5]), torch.zeros(5))[0][0].item(), 4)
    0.5
    """

    def spread(self, scores: Tensor, whose: Tensor) -> tuple[Tensor, Tensor]:
        std, equal = super().spread(scores, whose)
        size = group_sum(torch.ones_like(scores), whose)
        return std * (size / (size - 1).clamp(min=1)).sqrt(), equal


class LevelStd(GroupStd):
    """Population standard deviation of all rows of the row's level (`Problem.level`), its mean the level's.

    Shapes: scores, whose [B] -> [B], `whose` numbering the levels.

    >>> levels = torch.tensor([0, 0, 1, 1])
    >>> LevelStd().spread(torch.tensor([1.0, 0.0, 4.0, 0.0]), levels)[0].tolist()
    [0.5, 0.5, 2.0, 2.0]
    """

    within_group: ClassVar[bool] = False

    def whose(self, batch: TokenBatch) -> Tensor:
        names = [e.problem.level for e in batch.episodes]
        return torch.tensor([names.index(n) for n in names], device=batch.scores.device)


class BatchStd(Scale):
    """Population standard deviation of the whole batch, one number (Lite PPO, arXiv:2508.08221).

    Shapes: scores [B] -> [].

    >>> BatchStd().spread(torch.tensor([0.0, 0.0, 4.0, 4.0]), torch.tensor([0, 0, 1, 1]))[0].item()
    2.0
    """

    def spread(self, scores: Tensor, whose: Tensor) -> tuple[Tensor, Tensor]:
        return scores.std(correction=0), (scores.min() == scores.max()).expand_as(scores)


class GroupMeanScale(Scale):
    """Mean score of the row's group, its rate of success where scores are 0 or 1 (MaxRL, arXiv:2602.02710).

    Nothing where the mean is not above 0. Shapes: scores, whose [B] -> [B].

    >>> GroupMeanScale().spread(torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.zeros(4))[0].tolist()
    [0.5, 0.5, 0.5, 0.5]
    """

    within_group: ClassVar[bool] = True

    def spread(self, scores: Tensor, whose: Tensor) -> tuple[Tensor, Tensor]:
        mean = group_mean(scores, whose)
        return mean, mean <= 0


CENTRES = {"mean": "group-mean", "leave-one-out": "leave-one-out", "batch": "batch-mean", "none": None}
SCALES = {"group": "group-std", "batch": "batch-std", "level": "level-std", "mean": "group-mean-scale", "none": None}
"""Parts by the names that they had as modes, in runs of before."""


class GroupAdvantage(TokenAdvantages):
    """A_i = (r_i - centre) / scale, the same for every token of completion i.

    Rows that were written, not sampled, neither count nor get credit. A group whose rewards are all equal gets exactly
    0 where it supplies centre or deviation.

    Shapes: scores [B] -> advantages [B, T].

    Args:
        centre: what is subtracted; None: nothing.
        scale: what is divided by; None: nothing (Dr. GRPO, arXiv:2503.20783).

    >>> part, scores = GroupAdvantage(scale=GroupStd(epsilon=0.0)), torch.tensor([1.0, 0.0, 0.0, 1.0])
    >>> scaled(scores, torch.zeros(4), part.centre, part.scale).tolist()
    [1.0, -1.0, -1.0, 1.0]
    """

    centre: Centre | None = GroupMean()
    scale: Scale | None = GroupStd()

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        values = dict(values)
        epsilon = values.pop("epsilon", None)  # once of the part, whatever its scale
        values = upgraded(upgraded(values, "centre", CENTRES), "scale", SCALES)
        if epsilon is not None and values.get("scale", {}) is not None:
            values["scale"] = {"part": GroupStd.name, **values.get("scale", {}), "epsilon": epsilon}
        return values

    def objection(self, method: Method) -> str | None:
        compared = any(part is not None and part.within_group for part in (self.centre, self.scale))
        return lone_completion(method) if compared else None

    def __call__(self, batch: TokenBatch) -> Tensor:
        return self.of_scores(batch, batch.scores)[:, None] * batch.action_mask

    def of_scores(self, batch: TokenBatch, scores: Tensor) -> Tensor:
        """[B] advantages that the rows of a batch would have if these were the scores [B] of their episodes."""
        if (once := batch.once()) is not None:
            first, rows = once
            return self.of_scores(batch.rows(first), scores[first])[rows]
        whose = batch.group if self.scale is None else self.scale.whose(batch)
        on = batch.sampled
        if bool(on.all()):
            return scaled(scores, batch.group, self.centre, self.scale, whose)
        advantages = torch.zeros_like(scores)
        if bool(on.any()):
            advantages[on] = scaled(scores[on], batch.group[on], self.centre, self.scale, whose[on])
        return advantages


def scaled(
    scores: Tensor, group: Tensor, centre: Centre | None, scale: Scale | None, whose: Tensor | None = None
) -> Tensor:  # fmt: skip
    """[B] advantages of `GroupAdvantage`; `whose` [B] numbers what the scale compares, groups if not given."""
    centred = scores if centre is None else centre.centred(scores, group)
    return centred if scale is None else scale.scaled(centred, scores, group if whose is None else whose)


def lone_completion(method: Method) -> str | None:
    """The objection of what compares the completions of a problem to a method that makes one of each."""
    if method.completions == 1:
        return (
            "compares the completions of a problem with each other, and experience.size = 1 gives only one: "
            "set experience.size to 2 or more."
        )
    return None
