"""Which pairs of answers to ask about next, by what heads on frozen states say of them (arXiv:2502.04354).

Every rule takes what it needs to know of N pairs that nobody has labelled and returns which of them to ask about.
"""

from __future__ import annotations

import torch
from torch import Tensor


def random_pairs(count: int, among: int, generator: torch.Generator) -> Tensor:
    """[count] of so many pairs, all as likely.

    >>> sorted(random_pairs(3, 3, torch.Generator().manual_seed(0)).tolist())
    [0, 1, 2]
    """
    return torch.randperm(among, generator=generator)[:count]


def disagreed_pairs(margins: Tensor, count: int) -> Tensor:
    """[count] pairs of which the heads' margins r_1 - r_2 [M, N] have the largest variance over heads.

    >>> disagreed_pairs(torch.tensor([[1.0, 5.0, 2.0], [1.0, 5.5, -2.0]]), 2).tolist()
    [2, 1]
    """
    return margins.var(0, correction=0).argsort(descending=True, stable=True)[:count]


def d_optimal_pairs(differences: Tensor, chance: Tensor, count: int, ridge: float = 1.0) -> Tensor:
    """[count] pairs that make the most of log det(ridge I + sum p (1 - p) d d'), one after another.

    p (1 - p) d d' is what a label of the pair says of a linear reward (its Fisher information), d the difference of the
    states and p the predicted chance that the first is preferred. Each next one is that of the largest gain
    log(1 + p (1 - p) d' A^-1 d), after which A^-1 is brought up to date by Sherman and Morrison's formula.

    Shapes: differences [N, H], chance [N].

    >>> d = torch.tensor([[3.0, 0.0], [2.9, 0.0], [0.0, 1.0]])
    >>> d_optimal_pairs(d, torch.full((3,), 0.5), 2, ridge=0.1).tolist()  # another direction, not the next longest
    [0, 2]
    """
    x = differences.double() * (chance * (1 - chance)).clamp(min=0).double().sqrt()[:, None]
    inverse = torch.eye(x.shape[1], dtype=x.dtype) / ridge
    chosen: list[int] = []
    gain = (x @ inverse * x).sum(1)
    for _ in range(min(count, len(x))):
        best = int(gain.argmax())
        chosen.append(best)
        along = inverse @ x[best]
        scale = 1 + x[best] @ along
        inverse = inverse - torch.outer(along, along) / scale
        gain = gain - (x @ along) ** 2 / scale
        gain[chosen] = -torch.inf
    return torch.tensor(chosen, dtype=torch.long)
