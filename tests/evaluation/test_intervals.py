"""Aggregates and intervals against rliable's numbers, scipy, plain loops, and simulations with a known truth."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy import stats

from etude.core.errors import ConfigError, DataError
from etude.core.streams import Stream
from etude.evaluation import intervals
from etude.evaluation.intervals import (
    Interval,
    bootstrap_interval,
    curve_band,
    difference_interval,
    interquartile_mean,
    mean,
    median,
    min_max,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    relative_to,
    welch_interval,
    widened,
    won,
)

RUN, TASK = np.arange(10)[:, None], np.arange(5)[None]
X = ((7 * RUN + 3 * TASK + RUN * TASK) % 11) / 10 + 0.01 * TASK  # [10 runs, 5 tasks]
Y = (((5 * RUN + 2 * TASK + RUN * RUN * TASK) % 13) / 12)[:8]


# Against google-research/rliable 1.2.0 (arch 6.3.0) on the tables above; intervals from 50,000 resamples


@pytest.mark.parametrize(
    ("statistic", "value", "fixed_tasks", "other_tasks"),
    [
        (interquartile_mean, 0.36692308, (0.26653846, 0.48346154), (0.15461538, 0.58077885)),
        (mean, 0.424, (0.346, 0.502), (0.268, 0.56)),
        (median, 0.49, (0.35, 0.58), (0.14, 0.59)),
        (optimality_gap, 0.5766, (0.4992, 0.6548), (0.4414, 0.7324)),
    ],
)
def test_rliable_aggregates(statistic, value, fixed_tasks, other_tasks) -> None:
    fixed = bootstrap_interval(X, statistic, resamples=20_000)
    other = bootstrap_interval(X, statistic, resamples=20_000, resample_tasks=True)
    assert fixed.value == other.value == pytest.approx(value, abs=1e-8)
    assert (fixed.low, fixed.high) == pytest.approx(fixed_tasks, abs=0.0101)
    assert (other.low, other.high) == pytest.approx(other_tasks, abs=0.0101)


def test_rliable_probability_of_improvement() -> None:
    found = probability_of_improvement(X, Y, resamples=20_000)
    assert found.value == pytest.approx(0.495, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((0.37, 0.61878), abs=0.006)


def test_rliable_performance_profiles() -> None:
    taus = [0, 0.25, 0.5, 0.75, 1.0]
    runs = performance_profile(X, taus, resamples=20_000)
    np.testing.assert_allclose(runs.value, [0.98, 0.56, 0.4, 0.2, 0.04])
    np.testing.assert_allclose(runs.low, [0.94, 0.44, 0.28, 0.1, 0], atol=0.021)
    np.testing.assert_allclose(runs.high, [1, 0.66, 0.52, 0.3, 0.1], atol=0.021)
    tasks = performance_profile(X, taus, of_task_means=True, resamples=20_000)
    np.testing.assert_allclose(tasks.value, [1, 0.8, 0.4, 0, 0])
    np.testing.assert_allclose([tasks.low, tasks.high], [[1, 0.8, 0, 0, 0], [1, 0.8, 0.8, 0, 0]])


# Against scipy and plain loops


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (4, 1), (5, 3), (10, 26)])
def test_interquartile_mean_is_scipys_trimmed_mean(shape: tuple[int, int]) -> None:
    scores = np.random.default_rng(0).normal(size=shape)
    assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25, axis=None), abs=1e-12)


def test_aggregates_by_hand() -> None:
    scores = [[0.0, 2.0, 0.5], [1.0, 4.0, 0.5]]  # task means 0.5, 3, 0.5
    assert mean(scores) == pytest.approx(4 / 3)
    assert median(scores) == 0.5
    assert interquartile_mean(scores) == pytest.approx((0.5 + 0.5 + 1 + 2) / 4)
    assert optimality_gap(scores) == pytest.approx(1 - (0 + 1 + 1 + 1 + 0.5 + 0.5) / 6)
    assert optimality_gap(scores, 3.0) == pytest.approx(3 - (0 + 1 + 2 + 3 + 0.5 + 0.5) / 6)
    assert interquartile_mean([1, 2, 3, 4]) == 2.5


def test_aggregates_take_stacked_tables() -> None:
    stack = np.random.default_rng(0).normal(size=(6, 4, 3))
    for statistic in (mean, median, interquartile_mean, optimality_gap):
        np.testing.assert_allclose(statistic(stack), [statistic(s) for s in stack], atol=1e-12)


def test_won_is_the_probability_of_improvement() -> None:
    x, y = [1.0, 2.0, 3.0], [2.0, 0.0, 2.5, 4.0]
    assert won(x, y) == probability_of_improvement(x, y).value == pytest.approx((1 + 1.5 + 3) / 12)


def test_probability_of_improvement_by_loops() -> None:
    x, y = np.array([[1, 2], [2, 2], [3, 5]]), np.array([[2, 2], [0, 7]])
    per_task = [np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a in x[:, m] for b in y[:, m]]) for m in range(2)]
    assert per_task == pytest.approx([0.75, 1 / 3])
    assert probability_of_improvement(x, y).value == pytest.approx(np.mean(per_task), abs=1e-12)


def test_bootstrap_resamples_runs_within_their_task() -> None:
    """Tasks that differ only between each other must not make the interval wide."""
    scores = np.array([[0.0, 100.0, 7.0]] * 4)
    for statistic in (mean, median, interquartile_mean, optimality_gap):
        found = bootstrap_interval(scores, statistic)
        assert found.low == found.value == found.high  # identity 4: constant columns


def test_bootstrap_standard_error_of_the_mean() -> None:
    scores = np.random.default_rng(0).normal(size=(40, 3))
    expected = np.sqrt((scores.var(0) / 40).sum()) / 3  # plug-in variance of a mean of three task means
    found = bootstrap_interval(scores, mean, resamples=20_000)
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(expected, rel=0.03)


# Identities of the catalogue's row


@pytest.mark.slow
def test_area_under_the_profile_is_the_target_minus_the_gap() -> None:
    scores = np.random.default_rng(0).exponential(size=(9, 4))
    taus = (np.arange(4000) + 0.5) / 2000
    area = performance_profile(scores, taus, resamples=2).value.sum() / 2000
    assert area == pytest.approx(2 - optimality_gap(scores, 2.0), abs=1e-3)


def test_improvement_is_antisymmetric_with_ties_half() -> None:
    x, y = np.random.default_rng(0).integers(0, 4, (2, 6, 3))
    assert probability_of_improvement(x, y).value + probability_of_improvement(y, x).value == pytest.approx(1)
    assert probability_of_improvement(x, x).value == 0.5


def test_interquartile_mean_ignores_how_far_out_the_outer_half_lies() -> None:
    assert interquartile_mean([1, 2, 3, 4]) == interquartile_mean([-100, 2, 3, 1e6])


def test_aggregates_shift_with_the_scores() -> None:
    for statistic in (mean, median, interquartile_mean):
        assert statistic(X + 3) == pytest.approx(statistic(X) + 3, abs=1e-12)
    assert optimality_gap(X + 3, 4.0) == pytest.approx(optimality_gap(X), abs=1e-12)


# Two arms


def test_welch_equals_scipy() -> None:
    x, y = np.array([0.61, 0.55, 0.7]), np.array([0.5, 0.52, 0.44, 0.3])
    expected = stats.ttest_ind(x, y, equal_var=False).confidence_interval(0.95)
    found = welch_interval(x, y)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-10)
    assert found.method == "welch"


def test_welch_of_several_tasks_by_hand() -> None:
    x, y = np.array([[1.0, 4.0], [3.0, 6.0], [2.0, 8.0]]), np.array([[0.0, 1.0], [1.0, 5.0]])
    parts = [(1.0 / 3 / 4, 2), (4.0 / 3 / 4, 2), (0.5 / 2 / 4, 1), (8.0 / 2 / 4, 1)]  # s^2 / N / M^2, N - 1
    total = sum(v for v, _ in parts)
    half = stats.t.ppf(0.975, total**2 / sum(v**2 / df for v, df in parts)) * np.sqrt(total)
    found = welch_interval(x, y)
    assert found.value == pytest.approx(4 - 1.75)
    assert found.high - found.value == pytest.approx(half, abs=1e-10)


def test_welch_edges() -> None:
    single = welch_interval([1.0], [0.0, 0.5])
    assert (single.low, single.high) == (-np.inf, np.inf)
    assert single.to_json()["low"] is None
    same = welch_interval([0.5, 0.5], [0.25, 0.25])
    assert (same.low, same.value, same.high) == (0.25, 0.25, 0.25)


@pytest.mark.slow
def test_welch_covers_as_often_as_it_says() -> None:
    """2,000 pairs of arms, three and four runs, unequal spreads."""
    random, hits = np.random.default_rng(0), 0
    for _ in range(2000):
        found = welch_interval(random.normal(0.3, 1, 3), random.normal(0, 2, 4))
        hits += found.low <= 0.3 <= found.high
    assert 0.92 <= hits / 2000 <= 0.98


@pytest.mark.slow
def test_bootstrap_covers_with_enough_runs() -> None:
    random, hits = np.random.default_rng(0), 0
    for _ in range(400):
        x, y = random.normal(1, 1, (12, 2)), random.normal(0, 1, (15, 2))
        found = difference_interval(x, y, resamples=500, rng=random)
        hits += found.low <= 1 <= found.high
    assert 0.90 <= hits / 400 <= 0.98


@pytest.mark.slow
def test_interquartile_mean_is_covered_with_ten_runs_and_less_with_three() -> None:
    """26 log-normal tasks: the catalogue's simulation, made small."""
    random = np.random.default_rng(0)
    centre = random.normal(0, 0.3, 26)
    truth = interquartile_mean(np.exp(random.normal(centre, 0.5, (4000, 26))))

    def coverage(runs: int) -> float:
        draws = (np.exp(random.normal(centre, 0.5, (runs, 26))) for _ in range(250))
        found = [bootstrap_interval(d, resamples=300, rng=random) for d in draws]
        return float(np.mean([f.low <= truth <= f.high for f in found]))

    few, many = coverage(3), coverage(10)
    assert 0.75 <= few < many
    assert 0.88 <= many <= 0.98


def test_difference_of_interquartile_means() -> None:
    found = difference_interval(X, Y, interquartile_mean)
    assert found.value == pytest.approx(interquartile_mean(X) - interquartile_mean(Y), abs=1e-12)
    assert found.low < found.value < found.high


# Curves, scales, seeds, speed


def test_an_error_that_all_runs_share_widens_by_squares() -> None:
    """Draws of deviation 2 (five of them), at 95 %: t(4) = 2.776."""
    draws = np.array([-2.0, -1.0, 0.0, 1.0, 2.0]) * 2 / np.sqrt(2.5) + 17
    found = widened(Interval(10.0, 7.0, 14.0, method="welch"), draws)
    half = stats.t.ppf(0.975, 4) * 2
    assert found.low == pytest.approx(10 - np.hypot(3, half)) and found.high == pytest.approx(10 + np.hypot(4, half))
    assert (found.value, found.method) == (10.0, "welch")
    same = Interval(10.0, 7.0, 14.0)
    assert widened(same, [3.0, 3.0, 3.0]) == same
    assert widened(same, [3.0]).low == -np.inf and widened(same, [3.0]).high == np.inf


def test_widened_intervals_cover_what_runs_on_the_same_episodes_do_not() -> None:
    """Six runs differ by 1 around a mean that the episodes moved by 1; twenty resamples show how far they move it."""
    rng, held = np.random.default_rng(0), np.zeros(2)
    for _ in range(400):
        runs = rng.normal(rng.normal(), 1.0, (2, 6))
        moved = rng.normal(0, 1, 20)
        interval = welch_interval(runs[0], np.zeros(2))
        both = widened(interval, moved)
        held += [i.low <= 0 <= i.high for i in (interval, both)]
    assert held[0] / 400 < 0.75 and 0.93 < held[1] / 400 <= 0.99


def test_curve_band_is_the_interval_at_each_point() -> None:
    curves = np.random.default_rng(0).normal(size=(6, 4)).cumsum(1)
    band = curve_band(curves, [0, 10, 20, 40], rng=5)
    np.testing.assert_allclose(band.x, [0, 10, 20, 40])
    for i in range(4):
        at = bootstrap_interval(curves[:, i], rng=5)
        assert (band.value[i], band.low[i], band.high[i]) == pytest.approx((at.value, at.low, at.high), abs=1e-12)


def test_scales() -> None:
    np.testing.assert_allclose(relative_to([[15.0, 2.0]], low=[10, 0], high=[20, 1]), [[0.5, 2.0]])
    with pytest.raises(ConfigError, match="must differ in every task"):
        relative_to([1.0], 2.0, 2.0)
    x, y = min_max([[1.0, 5.0], [3.0, 5.0]], [[5.0, 5.0]])
    np.testing.assert_allclose(x, [[0, 0], [0.5, 0]])
    np.testing.assert_allclose(y, [[1, 0]])


def test_the_same_seed_gives_the_same_interval() -> None:
    assert bootstrap_interval(X, rng=1) == bootstrap_interval(X, rng=1) != bootstrap_interval(X, rng=2)
    assert bootstrap_interval(X, rng=Stream(4)) == bootstrap_interval(X, rng=Stream(4))
    assert bootstrap_interval(X, rng=np.random.default_rng(4)) == bootstrap_interval(X, rng=np.random.default_rng(4))


def test_two_thousand_resamples_are_quick() -> None:
    def seconds() -> float:
        began = time.monotonic()
        bootstrap_interval(X)
        return time.monotonic() - began

    assert min(seconds() for _ in range(5)) < 0.1


def test_bad_scores_are_refused() -> None:
    with pytest.raises(DataError, match="run 1 of task 0 is not"):
        bootstrap_interval([1.0, float("nan")])
    with pytest.raises(DataError, match="at least one run"):
        mean([])
    with pytest.raises(DataError, match="same tasks, got 5 and 1"):
        probability_of_improvement(X, [1.0, 2.0])
    with pytest.raises(DataError, match="4 points but there are 3 steps"):
        curve_band(np.zeros((2, 4)), [1, 2, 3])
    with pytest.raises(ConfigError, match="level must be"):
        bootstrap_interval(X, level=95)


def test_everything_named_is_there() -> None:
    assert all(hasattr(intervals, name) for name in intervals.__all__)
