"""Learning curves as a ceiling and a rate."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy.optimize import curve_fit

from etude.core.errors import DataError
from etude.evaluation.learning import FASTEST, SLOWEST, fit_curve

AT = np.array([0.0, 5, 10, 15, 20])


def _curve(t: np.ndarray, ceiling: float, rate: float, start: float = 0.1) -> np.ndarray:
    return np.asarray(start + (ceiling - start) * (1 - np.exp(-rate * t / 20)))


@pytest.mark.parametrize(("ceiling", "rate"), [(0.9, 0.5), (0.9, 3.0), (0.5, 8.0), (0.02, 2.0)])
def test_what_made_a_curve_is_found_again(ceiling: float, rate: float) -> None:
    found = fit_curve(AT, _curve(AT, ceiling, rate), (0.0, 1.0))
    assert (found.start, found.ceiling, found.rate) == pytest.approx((0.1, ceiling, rate), rel=1e-4)
    assert found.residual == pytest.approx(0, abs=1e-6)


def test_with_noise_it_is_what_another_least_squares_finds() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = _curve(AT, 0.7, 2.5) + rng.normal(0, 0.02, len(AT))
        own = fit_curve(AT, scores)
        other, _ = curve_fit(partial(_curve, start=scores[0]), AT, scores, p0=(0.7, 2.5))
        assert (own.ceiling, own.rate) == pytest.approx(tuple(other), rel=1e-3)


def test_a_curve_that_has_not_bent_yet_keeps_to_the_bounds() -> None:
    found = fit_curve(AT, 0.1 + 0.02 * AT, (0.0, 1.0))
    assert found.ceiling == 1.0 and SLOWEST <= found.rate <= FASTEST
    assert fit_curve(AT, 0.1 + 0.02 * AT).ceiling > 1


def test_units_of_time_and_score_do_not_matter() -> None:
    scores = _curve(AT, 0.7, 2.5) + np.array([0, 0.01, -0.01, 0.01, 0])
    one, other = fit_curve(AT, scores), fit_curve(AT * 1024, 500 * scores - 3)
    assert other.rate == pytest.approx(one.rate, rel=1e-5)
    assert other.ceiling == pytest.approx(500 * one.ceiling - 3, rel=1e-6)


def test_a_flat_curve_stays_where_it_is() -> None:
    found = fit_curve(AT, np.full(5, 0.3), (0.0, 1.0))
    assert (found.ceiling, found.residual) == (pytest.approx(0.3), 0)


@pytest.mark.parametrize(
    ("at", "scores", "message"),
    [
        ([0, 1], [0, 1], "three or more"),
        ([0, 1, 2], [0, np.nan, 1], "finite"),
        ([1, 2, 3], [0, 1, 1], "grow from 0"),
        ([0, 2, 2], [0, 1, 1], "grow from 0"),
    ],
)
def test_what_is_no_curve_is_refused(at: list[float], scores: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        fit_curve(at, scores)
