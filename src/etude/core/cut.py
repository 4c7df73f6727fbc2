"""A batch over ranks: which rows are whose."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.layout import sent


def cut(batch: TokenBatch, count: int, whole_groups: bool) -> list[Tensor]:
    """Row indices of each of `count` ranks, about as many tokens in each; of few rows some ranks have none.

    Rows of a group stay together where that is asked for, and where there are groups enough: they share a prompt.
    """
    if count == 1:
        return [sent(np.arange(len(batch)), batch.tokens.device)]
    lengths, group = batch.lengths.cpu().numpy(), batch.group.cpu().numpy()
    order = np.argsort(group, kind="stable")
    _, unit = np.unique(group[order], return_inverse=True)
    if not whole_groups and len(order) and unit[-1] + 1 < count:
        unit = np.arange(len(order))
    whose = balanced(np.bincount(unit, lengths[order], minlength=0), count)[unit]
    return [sent(np.sort(order[whose == rank]), batch.tokens.device) for rank in range(count)]


def balanced(sizes: np.ndarray, count: int) -> np.ndarray:
    """Which of `count` ranks has each of several things, in order: the one on whose share of the total its middle lies.

    >>> balanced(np.array([1.0, 1.0, 1.0, 3.0]), 2).tolist(), balanced(np.array([5.0]), 3).tolist()
    ([0, 0, 0, 1], [1])
    """
    middles = sizes.cumsum() - sizes / 2
    places = (middles * count / max(1.0, float(sizes.sum()))).astype(int)
    return places.clip(max=count - 1)
