"""Models of path finding small enough to be read: two matrices, and a free table; several graphs at a time.

    n  nodes,  S  graphs (one per seed),  B  walks of each graph,  L  most steps of a walk
    f[i, j, k]   logit of going from node j to node k when the target is i;  N[i, j, k]  how often training paths do

ALPINE's model (arXiv:2405.09220) is f(i, j) = W_M[j] + W_V[i]: attention that only sees the target, and a feed-forward
layer that only sees the current node. The table of arXiv:2509.22613 is any f.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etude.tasks.language.paths import PathData

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Graphs:
    """Several path-finding data sets with as many nodes each. Shapes: edges [S, n, n], counts [S, n, n, n]."""

    sets: Sequence[PathData]
    edges: Tensor
    counts: Tensor

    @staticmethod
    def of(sets: Sequence[PathData]) -> Graphs:
        """The data sets as tensors."""
        edges, counts = (np.stack([getattr(d, name) for d in sets]) for name in ("edges", "counts"))
        return Graphs(sets, torch.from_numpy(edges), torch.from_numpy(counts).double())

    @property
    def nodes(self) -> int:
        return self.edges.shape[-1]


# Likelihood


def log_likelihood(table: Tensor, counts: Tensor) -> Tensor:
    """sum_ijk N_ijk log softmax(f(i, j))[k] of tables [..., n, n, n]: [...]."""
    return (counts * table.log_softmax(-1)).sum((-3, -2, -1))


def excess(table: Tensor, counts: Tensor) -> Tensor:
    """N_ij P(k | i, j) - N_ijk [..., n, n, n]: the gradient of minus the log-likelihood by a free table."""
    return counts.sum(-1, keepdim=True) * table.softmax(-1) - counts


def entropy_bound(counts: Tensor) -> Tensor:
    """-sum_ijk N_ijk log(N_ijk / N_ij) [...]: the least that minus the log-likelihood of any table can be."""
    share = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    return -(counts * torch.where(counts > 0, share, 1.0).log()).sum((-3, -2, -1))


def two_matrix_table(w_m: Tensor, w_v: Tensor) -> Tensor:
    """f(i, j) = W_M[j] + W_V[i]: [..., n, n] twice -> [..., n, n, n]."""
    return w_m[..., None, :, :] + w_v[..., :, None, :]


def two_matrix_gradients(w_m: Tensor, w_v: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of minus the log-likelihood by W_M and W_V: sums of `excess` over targets, and over current nodes."""
    found = excess(two_matrix_table(w_m, w_v), counts)
    return found.sum(-3), found.sum(-2)


def fit_two_matrices(counts: Tensor, steps: int, rate: float) -> tuple[Tensor, Tensor]:
    """Gradient descent from zero on the mean loss per transition: W_M and W_V [S, n, n]."""
    w_m = torch.zeros_like(counts[..., 0, :, :])
    w_v = w_m.clone()
    scale = rate / counts.sum((-3, -2, -1))[..., None, None]
    for _ in range(steps):
        d_m, d_v = two_matrix_gradients(w_m, w_v, counts)
        w_m -= scale * d_m
        w_v -= scale * d_v
    return w_m, w_v


# Walks


@dataclass(frozen=True)
class Walks:
    """Walks that end at their target, or after L steps.

    Shapes: target [S, B]; nodes [S, B, L + 1], the source first; going [S, B, L], whether that step was taken;
    legal [S, B, L], whether it was along an edge; solved [S, B], whether all were and the target was reached.
    """

    target: Tensor
    nodes: Tensor
    going: Tensor
    legal: Tensor
    solved: Tensor

    def places(self, step: int) -> Tensor:
        """[S, B] rows of a table seen as [S n n, n] that said step number `step`."""
        seeds, n = torch.arange(len(self.target))[:, None], self.size
        return (seeds * n + self.target) * n + self.nodes[:, :, step]

    size: int = 0


def uniform(generators: Sequence[torch.Generator], *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[S, *shape] numbers from [0, 1), each graph's from its own generator: it draws the same whoever is beside it."""
    return torch.stack([torch.rand(*shape, generator=g, dtype=dtype) for g in generators])


def walk(
    table: Tensor, edges: Tensor, source: Tensor, target: Tensor, limit: int,
    generators: Sequence[torch.Generator] | None = None, temperature: float = 1.0,
) -> Walks:  # fmt: skip
    """Walks [S, B] of tables [S, n, n, n], sampled at a temperature, or greedy without a generator for each."""
    n = table.shape[-1]
    seeds = torch.arange(len(table))[:, None]
    rows, base = table.reshape(-1, n), (seeds * n + target) * n
    nodes, going, legal = [source], [], []
    on = source != target
    chance = None if generators is None else uniform(generators, limit, source.shape[1], dtype=table.dtype)
    for number in range(limit):
        said = rows[base + nodes[-1]]
        if chance is None:
            step = said.argmax(-1)
        else:
            below = (said / temperature).softmax(-1).cumsum(-1)
            drawn = chance[:, number, :, None] * below[..., -1:]
            step = torch.searchsorted(below, drawn, right=True)[..., 0].clamp_(max=n - 1)
        going.append(on)
        legal.append(edges[seeds, nodes[-1], step] | ~on)
        nodes.append(torch.where(on, step, nodes[-1]))
        on = on & (nodes[-1] != target)
        if not bool(on.any()):
            break
    path, took, fine = (torch.stack(x, -1) for x in (nodes, going, legal))
    return Walks(target, path, took, fine, fine.all(-1) & ~on, n)


def path_numbers(edges: Tensor) -> Tensor:
    """[S, n, n] number of paths from i to j of acyclic graphs: (I - A)^-1."""
    one = torch.eye(edges.shape[-1], dtype=torch.float64)
    found: Tensor = torch.linalg.inv(one - edges.double())
    return found.round() - one


def pairs_tensor(pairs: Sequence[Pairs], count: int | None = None) -> tuple[Tensor, Tensor]:
    """Sources and targets [S, count] of each graph's pairs, its pairs repeated where it has fewer than `count`."""
    count = count or max(map(len, pairs))
    chosen = torch.tensor([[p[i % len(p)] for i in range(count)] for p in pairs])
    return chosen[..., 0], chosen[..., 1]


def greedy_accuracy(table: Tensor, edges: Tensor, pairs: Sequence[Pairs]) -> list[float]:
    """Share of each graph's pairs for which the likeliest steps are a valid path; nan without pairs."""
    found = []
    for one, graph, asked in zip(table, edges, pairs):
        if not asked:
            found.append(float("nan"))
            continue
        source, target = pairs_tensor([asked])
        found.append(float(walk(one[None], graph[None], source, target, table.shape[-1]).solved.double().mean()))
    return found


def distinct_paths(walks: Walks, each: int) -> Tensor:
    """[S, B / each] number of different valid paths among every `each` walks in a row."""
    key = torch.zeros_like(walks.target)
    for column in walks.nodes.unbind(-1):
        key = key * 1_000_003 + column + 1  # wraps round, which does no harm to a hash
    key = torch.where(walks.solved, key, 0)
    ordered = key.view(len(key), -1, each).sort(-1).values
    fresh = ordered[..., 1:] != ordered[..., :-1]
    return fresh.sum(-1) + 1 - (ordered == 0).any(-1).long()
