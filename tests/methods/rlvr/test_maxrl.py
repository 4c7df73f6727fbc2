"""MaxRL: the order of the likelihood series that each estimator reaches, by enumeration of every group."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean, GroupMeanScale
from etude.advantages.order_statistics import MaclaurinAdvantage, maclaurin_weights, max_at_k
from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.exact import expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.policies.tabular import SoftmaxTree

SIZES = [2, 3, 4]


@pytest.fixture
def bandit() -> Bandit:
    """A 3-way softmax with 2 correct actions."""
    return Bandit(SoftmaxTree(1, 3, 1, spread=1.0, seed=3), torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64))


def success(bandit: Bandit) -> Tensor:
    return (bandit.policy.probs()[0, 0] * bandit.rewards[0]).sum()


def series(bandit: Bandit, order: int) -> Tensor:
    """sum_{k=0}^{order-1} (1-p)^k grad p."""
    p = success(bandit)
    return sum((1 - p.item()) ** k for k in range(order)) * gradient(p, bandit.policy)


def estimated(bandit: Bandit, size: int, advantages: GroupAdvantage | MaclaurinAdvantage) -> Tensor:
    """E[mean_i A_i s_i] over every group."""
    method: Method = get_method("maxrl").replace(advantages=advantages, aggregation="fixed-length")
    return -expected_gradient(method, bandit, size)


def exact(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-13, rtol=0)


@pytest.mark.first
@pytest.mark.parametrize("size", SIZES)
def test_the_average_score_of_the_successes_is_unbiased_for_order_n(bandit: Bandit, size: int) -> None:
    exact(estimated(bandit, size, GroupAdvantage(centre=None, scale=GroupMeanScale(epsilon=0.0))), series(bandit, size))


@pytest.mark.first
@pytest.mark.parametrize("size", SIZES)
def test_the_centred_form_is_unbiased_for_one_order_less(bandit: Bandit, size: int) -> None:
    exact(
        estimated(bandit, size, GroupAdvantage(centre=GroupMean(), scale=GroupMeanScale(epsilon=0.0))),
        series(bandit, size - 1),
    )


def test_the_method_is_the_centred_form_up_to_its_epsilon(bandit: Bandit) -> None:
    found = estimated(bandit, 3, get_method("maxrl").advantages)
    torch.testing.assert_close(found, series(bandit, 2), atol=1e-6, rtol=0)


@pytest.mark.first
@pytest.mark.parametrize("failures", [False, True])
@pytest.mark.parametrize(("size", "order"), [(n, t) for n in SIZES for t in range(1, n + 1)])
def test_every_order_up_to_n_is_reached_exactly(bandit: Bandit, size: int, order: int, failures: bool) -> None:
    exact(estimated(bandit, size, MaclaurinAdvantage(order=order, failures=failures)), series(bandit, order))


def test_likelihood_series_is_the_gradient_of_its_objective(bandit: Bandit) -> None:
    p = success(bandit)
    objective = -sum(((1 - p) ** k / k for k in range(1, 6)), torch.zeros(()))
    exact(gradient(objective, bandit.policy), series(bandit, 5))
    p = success(bandit)
    torch.testing.assert_close(series(bandit, 4000), gradient(p.log(), bandit.policy), atol=1e-12, rtol=0)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_order_n_weighs_a_success_by_one_over_their_number_and_order_one_by_one_over_n(n: int) -> None:
    highest, lowest = maclaurin_weights(n, n)[0], maclaurin_weights(n, 1)[0]
    assert highest[1:] == pytest.approx([n / right for right in range(1, n + 1)], abs=1e-12)
    assert lowest[1:] == (1.0,) * n
    assert not any(maclaurin_weights(n, n)[1])


def test_failures_carry_the_binomials_of_the_paper() -> None:
    """N = 5, T = 3, K = 1: F = 4, -(C(3,1)/C(4,1) + C(3,2)/C(4,2))."""
    right, wrong = maclaurin_weights(5, 3, failures=True)
    assert right == (1.0,) * 6
    assert wrong == pytest.approx((-(4 / 4 + 6 / 6), -(3 / 4 + 3 / 6), -(2 / 4 + 1 / 6), -1 / 4, 0.0, 0.0), abs=1e-12)


def test_one_sample_is_reinforce(bandit: Bandit) -> None:
    for advantages in (GroupAdvantage(centre=None, scale=GroupMeanScale(epsilon=0.0)), MaclaurinAdvantage()):
        exact(estimated(bandit, 1, advantages), gradient(success(bandit), bandit.policy))


def test_groups_that_are_all_right_or_all_wrong_teach_nothing_and_a_rare_success_counts_most(make_batch) -> None:
    scores = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    batch = make_batch([[1]] * 12, scores=scores, group=[0] * 4 + [1] * 4 + [2] * 4)
    found = get_method("maxrl").advantages(batch)[:, 0]
    assert not found[:8].any()
    assert found[8:].tolist() == pytest.approx([3.0, -1.0, -1.0, -1.0], abs=1e-4)


def test_groups_of_unequal_sizes_and_mixed_order_get_their_own_tables(make_batch) -> None:
    batch = make_batch([[0, 1]] * 5, scores=[1.0, 1.0, 0.0, 0.0, 1.0], group=[7, 2, 7, 7, 2])
    found = MaclaurinAdvantage()(batch)
    assert found.tolist() == [[0, 3.0], [0, 1.0], [0, 0.0], [0, 0.0], [0, 1.0]]


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 4])
def test_the_series_is_the_sum_of_pass_at_k_over_k(bandit: Bandit, size: int) -> None:
    """E[sum_i r~_i s_i] of every k, divided by k and added up, is order T."""
    expected = series(bandit, size)
    probs, total = bandit.policy.probs()[0, 0].detach(), torch.zeros_like(expected)
    for rows in torch.cartesian_prod(*[torch.arange(3)] * size):
        r = bandit.rewards[0, rows]
        weight = sum((max_at_k(r, torch.zeros(size), k) / k for k in range(1, size + 1)), torch.zeros(size).double())
        scores = torch.nn.functional.one_hot(rows, 3).double() - probs
        total += probs[rows].prod() * (weight[:, None] * scores).sum(0)
    exact(total, expected)
