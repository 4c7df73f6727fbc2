"""ALPINE: the counts, the gradients of the two-matrix model, what it can express and how low its loss can be."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.core.registry import get_method
from etude.experiments.rlvr.path_models import (
    entropy_bound,
    fit_two_matrices,
    greedy_accuracy,
    log_likelihood,
    two_matrix_gradients,
    two_matrix_table,
)
from etude.tasks.language.paths import PathData, Paths, data

TASK = Paths(nodes=12, density=0.25, demonstrations=5)
EXACT = {"atol": 1e-9, "rtol": 0.0}


def loss(w_m: Tensor, w_v: Tensor, made: PathData) -> Tensor:
    """Minus the log-likelihood of the training paths, transition by transition."""
    total = torch.zeros((), dtype=torch.float64)
    for path in made.paths:
        for j, k in pairwise(path):
            total = total - (w_m[j] + w_v[path[-1]]).log_softmax(0)[k]
    return total


def matrices(seed: int, n: int = 12) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    w_m, w_v = torch.randn(2, n, n, generator=random, dtype=torch.float64)
    return w_m.requires_grad_(), w_v.requires_grad_()


def test_counts_are_those_of_the_training_paths() -> None:
    made = data(TASK)
    found = Counter((p[-1], j, k) for p in made.paths for j, k in pairwise(p))
    assert {tuple(map(int, i)): int(made.counts[tuple(i)]) for i in np.argwhere(made.counts)} == dict(found)
    assert {tuple(map(int, i)) for i in np.argwhere(made.seen)} == {(p[-1], k) for p in made.paths for k in p[1:]}


def test_the_stated_gradients_equal_autograd() -> None:
    made, (w_m, w_v) = data(TASK), matrices(0)
    expected = torch.autograd.grad(loss(w_m, w_v, made), (w_m, w_v))
    counts = torch.from_numpy(made.counts).double()
    for mine, theirs in zip(two_matrix_gradients(w_m.detach(), w_v.detach(), counts), expected):
        torch.testing.assert_close(mine, theirs, **EXACT)
    value = -log_likelihood(two_matrix_table(w_m, w_v), counts)
    torch.testing.assert_close(value, loss(w_m, w_v, made), **EXACT)


@pytest.mark.first
@pytest.mark.parametrize("seed", range(5))
def test_large_multiples_of_adjacency_and_reachability_find_every_path(seed: int) -> None:
    made = data(Paths(nodes=30, density=0.15, seed=seed))
    reach = torch.from_numpy(made.reaches.T | np.eye(30, dtype=bool)).double()  # a target reaches itself
    edges = torch.from_numpy(made.edges)
    pairs = [(int(s), int(t)) for s, t in np.argwhere(made.reaches)]
    for c in (10.0, 1000.0):
        table = two_matrix_table(c * edges.double(), c * reach)
        assert greedy_accuracy(table[None], edges[None], [pairs]) == [1.0]
        chance = table.softmax(-1)
        right = (edges[None] & (reach[:, None] > 0)).double()
        asked = (reach > 0) & ~torch.eye(30, dtype=torch.bool)
        assert float((chance * right).sum(-1)[asked].min()) > 1 - 30 * np.exp(-c) - 1e-12  # sampling is valid, too


@pytest.mark.slow
def test_the_loss_is_bounded_by_the_conditional_entropy_which_a_free_table_attains() -> None:
    made = data(TASK)
    counts = torch.from_numpy(made.counts).double()
    bound = entropy_bound(counts)
    where = [tuple(map(int, x)) for x in np.argwhere(made.counts)]
    by_hand = -sum(made.counts[x] * np.log(made.counts[x] / made.counts[x[:2]].sum()) for x in where)
    assert float(bound) == pytest.approx(by_hand, abs=1e-9)
    free = counts.clamp(min=1e-300).log()
    assert float(-log_likelihood(free, counts)) == pytest.approx(float(bound), abs=1e-9)
    for seed in range(20):
        w_m, w_v = (w.detach() for w in matrices(seed))
        assert float(-log_likelihood(two_matrix_table(w_m, w_v), counts)) >= float(bound) - 1e-9
    fitted = two_matrix_table(*fit_two_matrices(counts, 2000, 5.0))
    assert float(bound) - 1e-9 <= float(-log_likelihood(fitted, counts)) < 1.2 * float(bound) + 0.05 * counts.sum()


def test_the_two_matrix_loss_is_convex() -> None:
    counts = torch.from_numpy(data(TASK).counts).double()
    for seed in range(10):
        a, b, c, d = (w.detach() for w in (*matrices(seed), *matrices(seed + 100)))
        ends = [-log_likelihood(two_matrix_table(*w), counts) for w in ((a, b), (c, d))]
        middle = -log_likelihood(two_matrix_table((a + c) / 2, (b + d) / 2), counts)
        assert float(middle) <= float(sum(ends) / 2) + 1e-9
    small = counts[:4, :4, :4] + torch.arange(64).view(4, 4, 4) % 3
    at = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value = lambda w: -log_likelihood(two_matrix_table(w[0], w[1]), small)  # noqa: E731
    curvature = torch.linalg.eigvalsh(torch.autograd.functional.hessian(value, at).reshape(32, 32))
    assert float(curvature.min()) > -1e-9


def test_only_what_was_seen_ever_grows() -> None:
    """Under gradient descent from zero W_M[j, k] falls if j -> k was never seen, W_V[i, k] if k never led to i."""
    made = data(TASK)
    counts = torch.from_numpy(made.counts).double()
    before = torch.zeros(2, 12, 12, dtype=torch.float64)
    unseen_edge, unseen_node = counts.sum(0) == 0, counts.sum(1) == 0
    for steps in (1, 5, 20, 80):
        w_m, w_v = fit_two_matrices(counts, steps, 5.0)
        assert bool((w_m[unseen_edge] <= before[0][unseen_edge]).all())
        assert bool((w_v[unseen_node] <= before[1][unseen_node]).all())
        before = torch.stack([w_m, w_v])
    assert float(w_m[~unseen_edge].mean()) > 0.5 > 0 > float(w_m[unseen_edge].mean())


def test_degrees_are_pieces_less_one() -> None:
    """By exhaustive search over chains of pieces: a training pair, or a node seen on the way to a target."""
    for seed in range(3):
        made = data(TASK.replace(seed=seed))
        pieces = {(p[0], p[-1]) for p in made.paths} | {(k, p[-1]) for p in made.paths for k in p[1:]}
        for s, t in made.test:
            reached, count = {s}, 0
            while t not in reached:
                reached, count = {b for a in reached for x, b in pieces if x == a}, count + 1
            assert made.degree[s, t] == count - 1


def test_it_is_supervised_learning_on_paths() -> None:
    method = get_method("alpine")
    assert method.row == "theory"
    assert {path.split(".")[0] for path in method.diff(get_method("sft"))} == {"optimizer", "problems"}
