"""Several runs on dated tasks: the error of their mean, pass@n beside it, what is older than a model."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from etude.core.errors import ConfigError, DataError
from etude.evaluation.fresh_tasks import flags, rates, resolved, standard_error

MONTHS = ["2025-01-05", "2025-06-30", "2025-07-01", "2025-11-20"]
RIGHT = [[1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]]


def test_figures_by_hand() -> None:
    found = resolved(RIGHT, MONTHS, "2025-07-01")
    # the runs resolve 2, 2, 1, 2 and 1 of 4
    assert rates(RIGHT).tolist() == [0.5, 0.5, 0.25, 0.5, 0.25]
    assert found["resolved"].value == pytest.approx(0.4) and found["pass@5"].value == pytest.approx(0.75)
    sem = statistics.stdev([0.5, 0.5, 0.25, 0.5, 0.25]) / 5**0.5
    assert found["resolved/sem"].value == pytest.approx(sem, abs=1e-12)
    assert found["flagged"].value == 0.5
    assert found["resolved/old"].value == pytest.approx(0.6) and found["resolved/fresh"].value == pytest.approx(0.2)
    assert {k: v.value for k, v in found.items() if "-" in k} == {
        "resolved/2025-01": 1.0, "resolved/2025-06": pytest.approx(0.2), "resolved/2025-07": pytest.approx(0.4),
        "resolved/2025-11": 0.0,
    }  # fmt: skip


def test_the_error_is_the_sample_s_over_the_root_of_runs() -> None:
    source = np.random.default_rng(0)
    for _ in range(20):
        values = source.random(5).tolist()
        assert standard_error(values) == pytest.approx(statistics.stdev(values) / 5**0.5, abs=1e-12)
    assert standard_error([0.3] * 5) == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(DataError, match="at least two"):
        standard_error([0.3])


def test_pass_at_n_is_no_less_and_equal_only_where_runs_agree() -> None:
    source = np.random.default_rng(1)
    for _ in range(50):
        right = source.random((8, 5)) < 0.4
        found = resolved(right, MONTHS * 2, "2025-07-01")
        agree = bool((right == right[:, :1]).all())
        assert found["pass@5"].value >= found["resolved"].value
        assert (found["pass@5"].value - found["resolved"].value < 1e-12) is agree
    same = np.tile([[True], [False], [True], [False]], 5)
    found = resolved(same, MONTHS, "2025-07-01")
    assert found["pass@5"].value == found["resolved"].value == 0.5 and found["resolved/sem"].value == 0.0


def test_a_model_older_than_all_tasks_has_no_flag() -> None:
    assert flags(MONTHS, "2025-01-05") == [False] * 4, "the same day is not before"
    assert flags(MONTHS, "2025-01-06") == [True, False, False, False] and flags(MONTHS, "2026-01-01") == [True] * 4
    found = resolved(RIGHT, MONTHS, "2024-12-31")
    assert found["flagged"].value == 0.0 and "resolved/old" not in found
    assert found["resolved/fresh"].value == found["resolved"].value


def test_what_is_no_date_or_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="--released must be a date like 2025-07-01, got 'July'"):
        flags(MONTHS, "July")
    with pytest.raises(DataError, match="a date of each task"):
        resolved(RIGHT, MONTHS[:3], "2025-07-01")
