"""Soft values of token trees, exactly: what a KL-regularised reward is worth from every beginning of a response.

    Q(s, a) = r(s, a) + V(s'),   V(s) = beta log sum_a ref(a | s) exp(Q(s, a) / beta),   V = 0 after the last token
    pi*(a | s) = ref(a | s) exp((Q(s, a) - V(s)) / beta)

so that beta log pi*/ref (a | s) = r(s, a) + V(s') - V(s): a reward that V has shaped (arXiv:2404.12358, eqs. 5 to 8).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from etude.policies.tabular import SoftmaxTree


class SoftValues(NamedTuple):
    """Q [X, N, V], V [X, N] and the logarithms of the optimum's chances [X, N, V], of a tree's nodes."""

    q: Tensor
    v: Tensor
    logp: Tensor


def edges(tree: SoftmaxTree) -> Tensor:
    """The node [N, V] that a token leads to from a node; -1 where the response is over with it."""
    following = torch.full((tree.count, tree.vocabulary), -1, dtype=torch.long)
    inner = tree.mask[:, 1:]
    following[tree.nodes[:, :-1][inner], tree.tokens[:, :-1][inner]] = tree.nodes[:, 1:][inner]
    return following


def outcome_rewards(tree: SoftmaxTree, rewards: Tensor) -> Tensor:
    """Rewards [X, Y] of whole responses as rewards of tokens [X, N, V]: of the last one, 0 for all others."""
    last = tree.mask.sum(1) - 1
    rows = torch.arange(len(last))
    found = rewards.new_zeros(len(rewards), tree.count, tree.vocabulary)
    found[:, tree.nodes[rows, last], tree.tokens[rows, last]] = rewards
    return found


def soft_values(tree: SoftmaxTree, reference: Tensor, rewards: Tensor, beta: float) -> SoftValues:
    """Soft value iteration from the leaves to the root.

    Args:
        reference: log-probabilities of tokens [X, N, V], as `tree.table()[p]` has them. rewards: of tokens [X, N, V].
        beta: the weight of KL(pi || ref), above 0.

    >>> tree = SoftmaxTree(1, 2, length=2)  # of two tokens; the last response is paid 1
    >>> paid = outcome_rewards(tree, torch.tensor([[0.0, 0.0, 0.0, 1.0]]).double())
    >>> found = soft_values(tree, tree.table()[0].detach(), paid, beta=0.5)
    >>> [round(x, 4) for x in found.v[0].tolist()]  # the root, after token 0, after token 1: 1/2 log((1 + e^2) / 2)
    [0.4772, 0.0, 0.7169]
    """
    following, done = edges(tree), torch.zeros(tree.count, dtype=torch.bool)
    q, v = rewards.clone(), rewards.new_zeros(rewards.shape[:2])
    for t in reversed(range(tree.length)):
        at = tree.nodes[tree.mask[:, t], t].unique()
        at = at[~done[at]]
        after = torch.where(following[at] < 0, 0.0, v[:, following[at].clamp(min=0)])
        q[:, at] = rewards[:, at] + after
        v[:, at] = beta * (reference[:, at] + q[:, at] / beta).logsumexp(-1)
        done[at] = True
    return SoftValues(q, v, reference + (q - v[..., None]) / beta)
