"""Groups that teach something, and do not lean to one side."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from etude.advantages.group import equal_groups, group_mean, of_episodes
from etude.core.batches import TokenBatch
from etude.core.fields import Count, Probability
from etude.core.slots import Filter


class InformativeGroups(Filter):
    """Drops groups whose rewards are all equal; new problems are sampled in their place (DAPO, arXiv:2503.14476).

    Args:
        rounds: how often at most to sample more problems for one step; what is missing then is simply missing.

    Shapes: scores, group [B] -> weights [B].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([1.0, 1.0, 1.0, 0.0]), group=torch.tensor([0, 0, 1, 1]))
    >>> InformativeGroups().weigh(rows).tolist()
    [0.0, 0.0, 1.0, 1.0]
    """

    resample: ClassVar[bool] = True
    rounds: Count = 3

    def weigh(self, batch: TokenBatch) -> Tensor:
        return (~equal_groups(batch.scores, batch.group)).to(batch.scores.dtype)


class BalancedGroups(Filter):
    """Drops groups whose mean score is further from 0 than `most`; new problems are sampled in their place.

        kept where |sum_i r_i| / G <= most                                                        (arXiv:2506.00103)

    Of answers that are compared with one of them, that one was then no outlier.

    Args:
        most: of the mean.
        rounds: as of `informative-groups`.

    Shapes: scores, group [B] -> weights [B].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([1.0, 1.0, 0.0, 1.0, -1.0, 0.0]), group=torch.tensor([0, 0, 0, 1, 1, 1]))
    >>> rows.once = lambda: None
    >>> BalancedGroups(most=0.6).weigh(rows).tolist()
    [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    """

    resample: ClassVar[bool] = True
    most: Probability = 0.6
    rounds: Count = 3

    def weigh(self, batch: TokenBatch) -> Tensor:
        mean = of_episodes(group_mean, batch, batch.scores)
        return (mean.abs() <= self.most + 1e-6).to(batch.scores.dtype)  # 3 / 5 is not more than 0.6
