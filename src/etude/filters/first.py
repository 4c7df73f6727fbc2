"""Groups beyond those that a step needs, of which the first that hold are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from etude.advantages.group import episode_sum, group_max
from etude.core.batches import TokenBatch
from etude.core.fields import Count
from etude.core.slots import Filter
from etude.core.worlds import World

if TYPE_CHECKING:
    from etude.core.method import Method


class FirstGroups(Filter):
    """Begins `extra` groups more than a step needs; the first that the other filters keep are learned from (ROLL).

    A filter that resamples has what it drops replaced at once, so that as many are under way until enough hold; the
    rest is aborted, and no part is shown it. A group ends with its last completion, and time is counted in tokens: a
    sampler that holds all rows at once gives each one token at a time. So nobody waits for the longest completion, and
    those that are learned from are shorter than those that were begun.

        ended = max_i |y_i|,   kept: the first B groups that hold, by (begun + ended)                 (arXiv:2506.06122)

    Args:
        extra: E, groups under way beyond the B that a step needs.

    Shapes: action_mask [B, T], group [B] -> weights, ended [B].

    >>> rows = TokenBatch(*[torch.zeros(4, 3)] * 9)
    >>> rows.group, rows.action_mask = torch.tensor([0, 0, 1, 1]), torch.ones(4, 3).tril().bool()
    >>> FirstGroups().ended(rows).tolist()
    [2.0, 2.0, 3.0, 3.0]
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    extra: Count = 4

    def objection(self, method: Method) -> str | None:
        others = [part for part in method.slots()["filters"] if part.extra]
        if len(others) > 1:
            return f"says how many groups are begun, and so does {type(others[1]).__name__}: leave one of them out."
        experience = method.slots()["experience"]
        if experience is not None and not experience.samples:
            return f"keeps the completions that end first, and {type(experience).__name__} takes its rows from data."
        return None

    def weigh(self, batch: TokenBatch) -> Tensor:
        return torch.ones_like(batch.scores)

    def ended(self, batch: TokenBatch) -> Tensor:
        return group_max(episode_sum(batch.action_counts, batch).to(batch.scores), batch.group)
