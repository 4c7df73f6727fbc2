"""Groups that teach something."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from etude.advantages.group import equal_groups
from etude.core.batches import TokenBatch
from etude.core.fields import Count
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
