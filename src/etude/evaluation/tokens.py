"""Where a policy is undecided: entropies of single tokens, compared between tokens and between policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.token_weights.entropy import high_entropy

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

PERCENTILES = (5, 25, 50, 75, 95)
MICRO_TOKENS = 8192


def token_entropies(policy: LanguagePolicy, batch: TokenBatch) -> Tensor:
    """[B, T] entropy in nats of a language policy before every action token of a batch, 0 elsewhere."""
    from etude.loops.whole_batch import evaluate_all

    entropies = evaluate_all(policy, batch, frozenset({"entropy"}), MICRO_TOKENS).entropy
    assert entropies is not None
    return entropies


def entropy_by_token(
    tokens: Tensor, entropy: Tensor, mask: Tensor, percentiles: Sequence[float] = PERCENTILES
) -> dict[int, dict[str, float]]:  # fmt: skip
    """For every token id: how often it was said, and mean and percentiles of the entropy where it was.

    Shapes: all [B, T]. Keys are 'count', 'mean' and 'p5', 'p25', ...

    >>> tokens, entropy = torch.tensor([[7, 7, 9]]), torch.tensor([[0.0, 1.0, 0.5]])
    >>> entropy_by_token(tokens, entropy, torch.ones(1, 3, dtype=torch.bool), (50,))[7]
    {'count': 2.0, 'mean': 0.5, 'p50': 0.5}
    """
    ids, values = tokens[mask], entropy[mask]
    marks = torch.tensor([p / 100 for p in percentiles], dtype=values.dtype, device=values.device)
    table = {}
    for token in torch.unique(ids).tolist():
        mine = values[ids == token]
        spread = zip(percentiles, mine.quantile(marks).tolist())
        table[token] = {
            "count": float(len(mine)), "mean": float(mine.mean()), **{f"p{p:g}": value for p, value in spread},
        }  # fmt: skip
    return table


def high_entropy_overlap(first: Tensor, second: Tensor, mask: Tensor, share: float = 0.2) -> float:
    """Share of the positions with the highest entropy under one policy that are such under another on the same texts.

    Shapes: entropies and mask [B, T]. 1 if both policies are undecided at the same positions; `share` by chance.
    """
    tops = [high_entropy(entropy, mask, share) for entropy in (first, second)]
    return float((tops[0] & tops[1]).sum() / tops[0].sum().clamp(min=1))


def entropy_change(before: Tensor, after: Tensor, mask: Tensor, bins: int = 20) -> list[float]:
    """Mean of (after - before) in each of `bins` equally large classes of tokens, in rising order of `before`.

    Shapes: entropies and mask [B, T]; with fewer tokens than `bins` there is one class per token.

    >>> before, after = torch.tensor([[0.0, 0.1, 0.8, 0.9]]), torch.tensor([[0.0, 0.1, 0.5, 0.6]])
    >>> [round(x, 3) for x in entropy_change(before, after, torch.ones(1, 4, dtype=torch.bool), 2)]
    [0.0, -0.3]
    """
    was, change = before[mask], (after - before)[mask]
    ordered = change[was.argsort(stable=True)]
    return [float(piece.mean()) for piece in ordered.tensor_split(min(bins, max(1, len(ordered)))) if len(piece)]
