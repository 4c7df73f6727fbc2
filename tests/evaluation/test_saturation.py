"""What is gained after the training problems are solved, by hand."""

from __future__ import annotations

import pytest

from etude.core.errors import DataError
from etude.evaluation.saturation import saturation

TRAIN = [0.2, 0.6, 0.98, 0.99, 0.9, 1.0, 1.0, 1.0]


def test_the_gain_counts_from_the_first_evaluation_at_saturation() -> None:
    """Solved at step 4; what test accuracy was before, 0.9 at step 2, is no gain."""
    found = saturation(TRAIN, steps=[0, 2, 4, 6, 8], test=[0.3, 0.9, 0.5, 0.7, 0.6])
    assert found is not None
    assert (found.step, found.tested, found.at, found.best, found.last) == (4, 4, 0.5, 0.7, 0.6)
    assert found.gain == pytest.approx(0.2) and found.rise == pytest.approx(0.1)


def test_between_two_evaluations_the_later_one_counts() -> None:
    found = saturation(TRAIN, steps=[0, 3, 6, 8], test=[0.3, 0.4, 0.7, 0.6])
    assert found is not None and (found.step, found.tested) == (4, 6)
    assert found.gain == 0.0 and found.rise == pytest.approx(-0.1)


def test_what_never_saturates_has_no_gain() -> None:
    assert saturation([0.5, 0.98], steps=[0, 2], test=[0.1, 0.9]) is None
    assert saturation(TRAIN, steps=[0, 3], test=[0.1, 0.9]) is None  # not evaluated since
    assert saturation([0.5, 0.98], steps=[0, 2], test=[0.1, 0.9], solved=0.98) is not None


@pytest.mark.parametrize(("steps", "test"), [([0, 2], [0.1]), ([2, 2], [0.1, 0.2]), ([3, 1], [0.1, 0.2])])
def test_evaluations_that_do_not_rise_are_refused(steps: list[int], test: list[float]) -> None:
    with pytest.raises(DataError, match="rising steps"):
        saturation(TRAIN, steps, test)
