"""Advantages from comparing the completions of a group: published numbers and identities."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.advantages.group import GroupAdvantage, equal_groups, group_max, group_mean, group_min, scaled


def of(
    scores: list[float], group: list[int] | None = None, centre: str = "mean", scale: str = "none", eps: float = 0.0
):
    values = torch.tensor(scores, dtype=torch.float64)
    return scaled(values, torch.tensor(group or [0] * len(scores)), centre, scale, eps)


def test_grpo_of_two_right_and_two_wrong() -> None:
    assert of([1, 0, 0, 1], scale="group").tolist() == [1, -1, -1, 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_smallest_and_largest_of_each_group(dtype: torch.dtype) -> None:
    """Groups need not stand together, and a row alone is both; the start of the search never counts."""
    values, group = torch.tensor([3, -7, 5, -2, 4], dtype=dtype), torch.tensor([9, 2, 9, 2, 4])
    assert group_min(values, group).tolist() == [3, -7, 3, -7, 4]
    assert group_max(values, group).tolist() == [5, -2, 5, -2, 4]


def test_rloo_is_the_reward_minus_the_mean_of_the_others() -> None:
    scores = [0.3, 1.7, -0.4, 2.2, 0.9]
    by_hand = [r - (sum(scores) - r) / 4 for r in scores]
    assert of(scores, centre="leave-one-out").tolist() == pytest.approx(by_hand, abs=1e-12)
    assert of(scores, centre="leave-one-out").tolist() == pytest.approx([5 / 4 * (r - sum(scores) / 5) for r in scores])


def test_a_row_without_others_gets_nothing() -> None:
    assert of([0.7, 1.0, 0.0], group=[0, 1, 1], centre="leave-one-out").tolist() == [0.0, 1.0, -1.0]


@pytest.mark.parametrize("centre", ["mean", "leave-one-out"])
@pytest.mark.parametrize("scale", ["none", "group", "batch"])
@pytest.mark.parametrize("value", [0.1, 1.0, -3.3])
def test_equal_rewards_teach_exactly_nothing(centre: str, scale: str, value: float) -> None:
    found = of([value] * 7 + [0.0, 1.0], group=[0] * 7 + [1, 1], centre=centre, scale=scale)
    assert found[:7].tolist() == [0.0] * 7
    assert found[7:].abs().min() > 0


@pytest.mark.parametrize("number", [1.0, 0.1, -3.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_spread_is_told_by_comparison_not_by_rounding(number: float, dtype: torch.dtype) -> None:
    """Seven times 0.1 has another mean than 0.1, and its standard deviation is not 0."""
    scores = torch.tensor([number] * 7 + [0.0, 1.0], dtype=dtype)
    group, eps = torch.tensor([0] * 7 + [1, 1]), 1e-6
    for centre in ("mean", "leave-one-out", "batch", "none"):
        assert scaled(scores, group, centre, "group", eps)[:7].tolist() == [0.0] * 7
        for scale in ("batch", "level"):
            levels = torch.zeros_like(group[:7])
            assert scaled(scores[:7], group[:7], centre, scale, eps, levels).tolist() == [0.0] * 7
    assert torch.equal(scaled(scores, group, "none", "none", eps), scores)
    spread = scores.std(correction=0)
    for centre, middle in (("none", 0.0), ("batch", scores.mean())):  # the batch supplies the spread, and has some
        torch.testing.assert_close(scaled(scores, group, centre, "batch", 0.0), (scores - middle) / spread)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3)), min_size=1, max_size=12))
def test_each_group_sums_to_zero_and_permuting_rows_permutes_advantages(rows: list[tuple[float, int]]) -> None:
    scores, group = [r for r, _ in rows], [g for _, g in rows]
    for scale in ("none", "batch"):
        found = of(scores, group, scale=scale, eps=1e-6)
        sums = group_mean(found, torch.tensor(group))
        assert sums.abs().max() < 1e-6
        turned = of(scores[::-1], group[::-1], scale=scale, eps=1e-6)
        torch.testing.assert_close(turned, found.flip(0), atol=1e-9, rtol=0)


def test_lite_ppo_of_a_single_group_is_grpo() -> None:
    scores = [1, 0, 0, 1, 1, 0.5]
    assert of(scores, scale="batch").tolist() == pytest.approx(of(scores, scale="group").tolist(), abs=1e-12)


def test_lite_ppo_does_not_see_the_scale_of_rewards() -> None:
    scores, group = [1, 0, 0, 1, 3, 0.5], [0, 0, 0, 1, 1, 1]
    plain = of(scores, group, scale="batch")
    assert of([7 * r for r in scores], group, scale="batch").tolist() == pytest.approx(plain.tolist(), abs=1e-12)


def test_one_failure_among_eight_shouts_under_grpo_only() -> None:
    scores, group = [1.0] * 7 + [0.0] + [1.0] * 4 + [0.0] * 4, [0] * 8 + [1] * 8
    assert of(scores, group, scale="group")[7].item() == pytest.approx(-math.sqrt(7), abs=1e-12)  # -2.65
    spread = math.sqrt(11 / 16 * 5 / 16)
    assert of(scores, group, scale="batch")[7].item() == pytest.approx(-0.875 / spread, abs=1e-12)


def test_advantages_cover_action_tokens_only(make_batch) -> None:
    batch = make_batch([[0, 1, 0], [0, 1, 1]], scores=[1.0, 0.0])
    assert GroupAdvantage(epsilon=0.0)(batch).tolist() == [[0, 1, 0], [0, -1, -1]]


def test_equal_groups_compares_exactly() -> None:
    scores = torch.tensor([0.1 + 0.2, 0.3, 1.0, 1.0], dtype=torch.float64)
    assert equal_groups(scores, torch.tensor([5, 5, 2, 2])).tolist() == [False, False, True, True]
