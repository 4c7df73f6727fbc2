"""Which filter of ranks suits a reward model (arXiv:2409.06957, section 3.2): how well its score says what is kept.

Sample a few hundred responses, score them by the model and by what they are really worth, and take a filter under which
the one says much of the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from etude.core.errors import DataError
from etude.methods.preference.pf_ppo import RankShares


def rank_fit(proxy: Tensor, gold: Tensor, ranks: RankShares) -> float:
    """R^2 of the line gold ~ proxy over what a filter of ranks draws, each response by its chance to be drawn.

    Affine changes of either score change nothing. nan where one of them does not vary among what is drawn.

    Shapes: proxy, gold [P, N], of N responses to each of P prompts.

    Raises: DataError unless both are of one shape [P, N].

    The model confuses what lies in the middle:

    >>> from etude.methods.preference.pf_ppo import BestWorstRanks, EqualRanks
    >>> proxy, gold = torch.tensor([[3.0, 2.0, 1.0, 0.0]]), torch.tensor([[3.0, 0.0, 3.0, 0.0]])
    >>> [round(rank_fit(proxy, gold, ranks), 3) for ranks in (EqualRanks(), BestWorstRanks())]
    [0.2, 1.0]
    """
    if proxy.dim() != 2 or proxy.shape != gold.shape:
        raise DataError(f"rank_fit takes two scores [P, N], got {tuple(proxy.shape)} and {tuple(gold.shape)}.")
    order = proxy.argsort(dim=1, descending=True, stable=True)
    weights = torch.tensor(ranks.of(proxy.shape[1]), dtype=torch.float64).expand(proxy.shape).flatten()
    x, y = (v.double().gather(1, order).flatten() for v in (proxy, gold))
    weights = weights / weights.sum()
    x, y = (v - (weights * v).sum() for v in (x, y))
    return float((weights * x * y).sum() ** 2 / ((weights * x * x).sum() * (weights * y * y).sum()))
