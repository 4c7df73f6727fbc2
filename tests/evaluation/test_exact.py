"""Exact expectations against what is known on paper."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from etude.core.registry import get_method
from etude.evaluation.exact import every_group, expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.policies.tabular import SoftmaxTree


def bandit(length: int = 1, vocabulary: int = 4, seed: int = 0, binary: bool = False) -> Bandit:
    policy = SoftmaxTree(1, vocabulary, length, spread=1.0, seed=seed)
    rewards = torch.rand(1, len(policy.tokens), generator=torch.Generator().manual_seed(seed + 9), dtype=torch.float64)
    return Bandit(policy, (rewards > 0.5).double() if binary else rewards)


def true_gradient(b: Bandit) -> torch.Tensor:
    return gradient((b.policy.probs()[0] * b.rewards).sum(), b.policy)


def test_the_chances_of_all_groups_sum_to_one() -> None:
    b = bandit()
    assert float(sum(chance for chance, _, _ in every_group(b, 3))) == pytest.approx(1.0, abs=1e-14)


@pytest.mark.first
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("length", [1, 2])
def test_leave_one_out_is_unbiased(size: int, length: int) -> None:
    b = bandit(length, vocabulary=3)
    found = expected_gradient(get_method("rloo"), b, size)
    torch.testing.assert_close(-found * length, true_gradient(b), atol=1e-12, rtol=1e-10)  # 'fixed-length' divides


@pytest.mark.slow
def test_the_mean_of_the_group_shrinks_the_gradient_by_one_part_in_its_size() -> None:
    b = bandit()
    for size in (2, 3, 4):
        found = expected_gradient(get_method("dr-grpo"), b, size)
        torch.testing.assert_close(-found, (size - 1) / size * true_gradient(b), atol=1e-12, rtol=1e-10)


@pytest.mark.slow
def test_a_deviation_in_the_denominator_changes_the_direction() -> None:
    b = bandit()
    found, exact = -expected_gradient(get_method("grpo"), b, 3), true_gradient(b)
    cosine = (found * exact).sum() / found.norm() / exact.norm()
    assert float(cosine) < 0.999


def test_groups_of_another_policy_need_ratios() -> None:
    b, behaviour = bandit(), SoftmaxTree(1, 4, spread=1.0, seed=5)
    method: Any = get_method("rloo")
    exact = true_gradient(b)
    from etude.objectives.surrogate import Surrogate

    weighted = method.replace(
        objective=Surrogate(), advantages=method.advantages.replace(centre=None)
    )  # one sample, no baseline: E_old[rho r grad log pi]
    torch.testing.assert_close(-expected_gradient(weighted, b, 1, behaviour=behaviour), exact, atol=1e-12, rtol=1e-10)
    plain = method.replace(advantages=method.advantages.replace(centre=None))
    assert (expected_gradient(plain, b, 1, behaviour=behaviour) + exact).abs().max() > 1e-3
