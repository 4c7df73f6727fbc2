"""Advantages from comparing the completions of a group: published numbers and identities."""

from __future__ import annotations

import math
from statistics import fmean, pstdev

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import etude
from etude.advantages.group import (
    BatchMean,
    BatchStd,
    Centre,
    GroupAdvantage,
    GroupMean,
    GroupMeanScale,
    GroupStd,
    LeaveOneOut,
    LevelStd,
    Scale,
    equal_groups,
    group_max,
    group_mean,
    group_min,
    scaled,
)
from etude.advantages.returns import RewardToGo
from etude.core.errors import ConfigError
from etude.core.fit import objections
from etude.core.part import part_from_json
from etude.experience.groups import Groups

MEAN, OTHERS, GROUP, BATCH = GroupMean(), LeaveOneOut(), GroupStd(epsilon=0.0), BatchStd(epsilon=0.0)


def of(
    scores: list[float], group: list[int] | None = None, centre: Centre | None = MEAN, scale: Scale | None = None
):  # fmt: skip
    values = torch.tensor(scores, dtype=torch.float64)
    return scaled(values, torch.tensor(group or [0] * len(scores)), centre, scale)


def test_grpo_of_two_right_and_two_wrong() -> None:
    assert of([1, 0, 0, 1], scale=GROUP).tolist() == [1, -1, -1, 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_smallest_and_largest_of_each_group(dtype: torch.dtype) -> None:
    """Groups need not stand together, and a row alone is both; the start of the search never counts."""
    values, group = torch.tensor([3, -7, 5, -2, 4], dtype=dtype), torch.tensor([9, 2, 9, 2, 4])
    assert group_min(values, group).tolist() == [3, -7, 3, -7, 4]
    assert group_max(values, group).tolist() == [5, -2, 5, -2, 4]


def test_rloo_is_the_reward_minus_the_mean_of_the_others() -> None:
    scores = [0.3, 1.7, -0.4, 2.2, 0.9]
    by_hand = [r - (sum(scores) - r) / 4 for r in scores]
    assert of(scores, centre=OTHERS).tolist() == pytest.approx(by_hand, abs=1e-12)
    assert of(scores, centre=OTHERS).tolist() == pytest.approx([5 / 4 * (r - sum(scores) / 5) for r in scores])


def test_a_row_without_others_gets_nothing() -> None:
    assert of([0.7, 1.0, 0.0], group=[0, 1, 1], centre=OTHERS).tolist() == [0.0, 1.0, -1.0]


@pytest.mark.parametrize("centre", [MEAN, OTHERS])
@pytest.mark.parametrize("scale", [None, GROUP, BATCH])
@pytest.mark.parametrize("value", [0.1, 1.0, -3.3])
def test_equal_rewards_teach_exactly_nothing(centre: Centre, scale: Scale | None, value: float) -> None:
    found = of([value] * 7 + [0.0, 1.0], group=[0] * 7 + [1, 1], centre=centre, scale=scale)
    assert found[:7].tolist() == [0.0] * 7
    assert found[7:].abs().min() > 0


@pytest.mark.parametrize("scale", [None, GroupStd()])
@pytest.mark.parametrize("more", [0.25, 2.0, -3.3])
def test_what_all_rewards_of_a_group_are_paid_more_changes_nothing(scale: Scale | None, more: float) -> None:
    """Another constant in each group."""
    scores, group = [1.0, 0.0, 0.0, 0.7, 0.2, 1.0, 0.0], [0, 0, 0, 1, 1, 1, 1]
    raised = [s + more * (1 + g) for s, g in zip(scores, group)]
    by_hand = list[float]()
    for number in (0, 1):
        own = [s for s, g in zip(scores, group) if g == number]
        below = 1.0 if scale is None else pstdev(own) + scale.epsilon  # type: ignore[attr-defined]
        by_hand += [(s - fmean(own)) / below for s in own]
    for found in (of(scores, group, scale=scale), of(raised, group, scale=scale)):
        assert found.tolist() == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize("number", [1.0, 0.1, -3.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_spread_is_told_by_comparison_not_by_rounding(number: float, dtype: torch.dtype) -> None:
    """Seven times 0.1 has another mean than 0.1, and its standard deviation is not 0."""
    scores = torch.tensor([number] * 7 + [0.0, 1.0], dtype=dtype)
    group = torch.tensor([0] * 7 + [1, 1])
    for centre in (MEAN, OTHERS, BatchMean(), None):
        assert scaled(scores, group, centre, GroupStd())[:7].tolist() == [0.0] * 7
        for scale in (BatchStd(), LevelStd()):
            levels = torch.zeros_like(group[:7])
            assert scaled(scores[:7], group[:7], centre, scale, levels).tolist() == [0.0] * 7
    assert torch.equal(scaled(scores, group, None, None), scores)
    spread = scores.std(correction=0)
    for centre, middle in ((None, 0.0), (BatchMean(), scores.mean())):  # the batch supplies the spread, and has some
        torch.testing.assert_close(scaled(scores, group, centre, BATCH), (scores - middle) / spread)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3)), min_size=1, max_size=12))
def test_each_group_sums_to_zero_and_permuting_rows_permutes_advantages(rows: list[tuple[float, int]]) -> None:
    scores, group = [r for r, _ in rows], [g for _, g in rows]
    for scale in (None, BatchStd()):
        found = of(scores, group, scale=scale)
        sums = group_mean(found, torch.tensor(group))
        assert sums.abs().max() < 1e-6
        turned = of(scores[::-1], group[::-1], scale=scale)
        torch.testing.assert_close(turned, found.flip(0), atol=1e-9, rtol=0)


def test_lite_ppo_of_a_single_group_is_grpo() -> None:
    scores = [1, 0, 0, 1, 1, 0.5]
    assert of(scores, scale=BATCH).tolist() == pytest.approx(of(scores, scale=GROUP).tolist(), abs=1e-12)


def test_lite_ppo_does_not_see_the_scale_of_rewards() -> None:
    scores, group = [1, 0, 0, 1, 3, 0.5], [0, 0, 0, 1, 1, 1]
    plain = of(scores, group, scale=BATCH)
    assert of([7 * r for r in scores], group, scale=BATCH).tolist() == pytest.approx(plain.tolist(), abs=1e-12)


def test_one_failure_among_eight_shouts_under_grpo_only() -> None:
    scores, group = [1.0] * 7 + [0.0] + [1.0] * 4 + [0.0] * 4, [0] * 8 + [1] * 8
    assert of(scores, group, scale=GROUP)[7].item() == pytest.approx(-math.sqrt(7), abs=1e-12)  # -2.65
    spread = math.sqrt(11 / 16 * 5 / 16)
    assert of(scores, group, scale=BATCH)[7].item() == pytest.approx(-0.875 / spread, abs=1e-12)


def test_advantages_cover_action_tokens_only(make_batch) -> None:
    batch = make_batch([[0, 1, 0], [0, 1, 1]], scores=[1.0, 0.0])
    assert GroupAdvantage(scale=GroupStd(epsilon=0.0))(batch).tolist() == [[0, 1, 0], [0, -1, -1]]


def test_equal_groups_compares_exactly() -> None:
    scores = torch.tensor([0.1 + 0.2, 0.3, 1.0, 1.0], dtype=torch.float64)
    assert equal_groups(scores, torch.tensor([5, 5, 2, 2])).tolist() == [False, False, True, True]


def test_every_pair_of_centre_and_scale_by_hand() -> None:
    """Groups (4, 0) and (1, 1, 4), in levels of their own."""
    scores, group = [4.0, 0.0, 1.0, 1.0, 4.0], [0, 0, 1, 1, 1]
    root = math.sqrt(2)
    centred = {
        MEAN: [2, -2, -1, -1, 2], OTHERS: [4, -4, -1.5, -1.5, 3], BatchMean(): [2, -2, -1, -1, 2], None: scores
    }  # fmt: skip
    spread = {
        GROUP: [2, 2, root, root, root], LevelStd(epsilon=0.0): [2, 2, root, root, root],
        BATCH: [math.sqrt(2.8)] * 5, GroupMeanScale(epsilon=0.0): [2] * 5, None: [1] * 5,
    }  # fmt: skip
    for centre, above in centred.items():
        for scale, below in spread.items():
            wanted = [a / b for a, b in zip(above, below)]
            assert of(scores, group, centre, scale).tolist() == pytest.approx(wanted, abs=1e-12), (centre, scale)


@pytest.mark.parametrize("centre", [MEAN, OTHERS, BatchMean(), None])
def test_returns_of_one_reward_are_held_against_the_same_baselines(centre: Centre | None, make_batch) -> None:
    """An undiscounted return is the whole reward at every token, so both parts give the same credit."""
    mask, rewards = [[0, 1, 1], [0, 1, 0], [0, 1, 1]], [[0, 0, 1.0], [0, 0.5, 0], [0, 0, 0.3]]
    batch = make_batch(mask, scores=[1.0, 0.5, 0.3], rewards=rewards, group=[0, 0, 1])
    found = RewardToGo(gamma=1.0, baseline=centre)(batch)
    torch.testing.assert_close(found, GroupAdvantage(centre=centre, scale=None)(batch), atol=1e-12, rtol=0)


OLD = {
    "mean": GroupMean(), "leave-one-out": LeaveOneOut(), "batch": BatchMean(), "none": None
}  # fmt: skip
OLD_SCALES = {
    "group": GroupStd(epsilon=0.5), "batch": BatchStd(epsilon=0.5), "level": LevelStd(epsilon=0.5),
    "mean": GroupMeanScale(epsilon=0.5), "none": None,
}  # fmt: skip


@pytest.mark.parametrize("centre", OLD)
@pytest.mark.parametrize("scale", OLD_SCALES)
def test_reads_the_modes_that_runs_of_before_wrote(centre: str, scale: str) -> None:
    written = {"part": "group-advantage", "centre": centre, "scale": scale, "epsilon": 0.5}
    found = part_from_json(written)
    assert found == GroupAdvantage(centre=OLD[centre], scale=OLD_SCALES[scale])
    assert part_from_json(found.to_json()) == found


def test_reads_a_part_of_before_that_names_some_fields_only() -> None:
    assert part_from_json({"part": "group-advantage"}) == GroupAdvantage()
    assert part_from_json({"part": "group-advantage", "epsilon": 0.0}) == GroupAdvantage(scale=GROUP)
    assert part_from_json({"part": "reward-to-go", "baseline": "none"}) == RewardToGo(baseline=None)
    assert part_from_json({"part": "reward-to-go", "baseline": "batch"}) == RewardToGo(baseline=BatchMean())
    with pytest.raises(ConfigError, match=r"GroupAdvantage\.centre must be a Centre part, got 'median'"):
        part_from_json({"part": "group-advantage", "centre": "median"})


def test_a_baseline_of_the_group_is_not_for_control() -> None:
    """There are no groups, and a return must not be held against nothing in silence."""
    method = etude.method("reinforce", world="control").replace(advantages=RewardToGo(baseline=GroupMean()))
    sentences = list(objections(method, etude.task("cartpole")))
    assert any("GroupMean (advantages.baseline) is for tasks of enumerable and language" in s for s in sentences)
    assert not list(objections(method.replace(advantages=RewardToGo(gamma=0.9)), etude.task("cartpole")))
    lone = etude.method("reinforce").replace(advantages=RewardToGo(baseline=GroupMean()), experience=Groups(size=1))
    assert any("experience.size = 1 gives only one" in s for s in lone.objections())
