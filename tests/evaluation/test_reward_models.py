"""Measures of reward models: against counting, integrals and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from etude.core.errors import DataError
from etude.evaluation.reward_models import (
    best_of_n,
    best_of_n_fit,
    best_of_n_kl,
    calibration_by_rank,
    pair_accuracy,
    proxy_gap,
    reinforcement_fit,
)

RANDOM = np.random.default_rng(0)
SCORES, GOLD = RANDOM.normal(size=(3, 6)), RANDOM.integers(-2, 3, size=(3, 6)) / 2


@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_best_of_n_is_the_mean_over_all_draws_of_n(n: int) -> None:
    found = best_of_n(SCORES, GOLD, n)
    for row in range(3):
        each = [GOLD[row, max(some, key=lambda k: SCORES[row, k])] for some in itertools.combinations(range(6), n)]
        assert found[row] == pytest.approx(np.mean(each), abs=1e-12)


def test_calibration_by_rank_is_counting() -> None:
    """Pair by pair, from the least sure to the surest; ties in gold are in no part."""
    pairs = []
    for said, true in zip(SCORES, GOLD):
        for i, j in itertools.combinations(range(6), 2):
            if true[i] != true[j]:
                better, worse = (i, j) if true[i] > true[j] else (j, i)
                gap = said[better] - said[worse]
                pairs.append((abs(gap), 1 / (1 + math.exp(-abs(gap))), float(gap > 0)))
    pairs.sort()
    halves = (pairs[: -(-len(pairs) // 2)], pairs[-(-len(pairs) // 2) :])
    sure, right = calibration_by_rank(SCORES, GOLD, bins=2)
    assert sure.tolist() == pytest.approx([np.mean([p[1] for p in half]) for half in halves], abs=1e-12)
    assert right.tolist() == pytest.approx([np.mean([p[2] for p in half]) for half in halves], abs=1e-12)


def test_log_odds_of_a_bradley_terry_teacher_are_calibrated_and_three_times_them_are_not() -> None:
    margin = RANDOM.normal(size=20_000) * 1.5
    won = RANDOM.random(len(margin)) < 1 / (1 + np.exp(-margin))
    scores, gold = np.stack([margin, np.zeros_like(margin)], 1), np.stack([won, ~won], 1)
    sure, right = calibration_by_rank(scores, gold, bins=5)
    assert np.abs(sure - right).max() < 0.03 and sure[0] < 0.6 < 0.9 < sure[-1]
    over, same = calibration_by_rank(3 * scores, gold, bins=5)
    assert same.tolist() == right.tolist() and (over - same)[1:4].min() > 0.1


def test_equal_scores_share() -> None:
    assert best_of_n([[1.0, 1.0, 0.0]], [[4.0, 8.0, 100.0]], 3).tolist() == [6.0]
    assert best_of_n([[0.0, 0.0]], [[4.0, 8.0]], 1).tolist() == [6.0]


@pytest.mark.parametrize("n", [1, 3, 6])
def test_an_increasing_transform_chooses_the_same(n: int) -> None:
    """Exactly: the same weights meet the same answers; and so does a shift of each prompt's own."""
    plain = best_of_n(SCORES, GOLD, n)
    for changed in (np.exp(SCORES), SCORES**3, SCORES + np.array([[5.0], [-2.0], [0.0]])):
        assert (best_of_n(changed, GOLD, n) == plain).all()


@pytest.mark.parametrize("n", [1, 2, 8, 64])
def test_the_kl_of_best_of_n_is_an_integral(n: int) -> None:
    """The density of the best of n uniform numbers is n u^(n - 1): 400 nodes, exact but for the logarithm."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    s = (nodes + 1) / 2  # u = s^4 takes the logarithm's edge away
    u = s**4
    density = n * u ** (n - 1)
    found = float((weights / 2 * 4 * s**3 * density * (np.log(n) + (n - 1) * np.log(u))).sum())
    assert best_of_n_kl(n) == pytest.approx(found, abs=1e-8)


def test_pairs_are_counted_where_gold_differs() -> None:
    scores, gold = [[3.0, 1.0, 2.0], [0.0, 0.0, 1.0]], [[1.0, 0.0, 1.0], [2.0, 1.0, 0.0]]
    # of the first row (0, 1) and (1, 2), both right; of the second a tie and two that are wrong
    assert pair_accuracy(scores, gold) == pytest.approx(2.5 / 5)
    assert math.isnan(pair_accuracy(scores, np.ones((2, 3))))


def test_the_gap_is_0_where_the_proxy_is_a_line_of_gold() -> None:
    for n in (1, 3, 6):
        assert proxy_gap(2 * GOLD + 7, GOLD, n) == pytest.approx(0, abs=1e-12)
    assert proxy_gap(SCORES, GOLD, 1) == pytest.approx(0, abs=1e-12)
    assert proxy_gap(SCORES, -SCORES, 6) > 2


def test_laws_are_found_again() -> None:
    d = np.linspace(0.5, 3, 7)
    assert best_of_n_fit(d, d * (1.5 - 0.25 * d)) == pytest.approx((1.5, 0.25), abs=1e-10)
    assert reinforcement_fit(d, d * (1.5 - 0.25 * np.log(d))) == pytest.approx((1.5, 0.25), abs=1e-10)
    with pytest.raises(DataError, match="distances above 0"):
        reinforcement_fit([0.0, 1.0], [0.0, 1.0])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match=r"one shape \[P, K\]"):
        pair_accuracy([1.0], [1.0])
    with pytest.raises(DataError, match="Of 1 pairs that are not worth the same 2 parts cannot be made"):
        calibration_by_rank([[0.0, 1.0]], [[0.0, 1.0]], bins=2)
    with pytest.raises(DataError, match="n from 1 to the 6"):
        best_of_n(SCORES, GOLD, 7)
