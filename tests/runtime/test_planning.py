"""The planner against every allocation that there is."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.core.errors import ConfigError
from etude.runtime.planning import Allocation, allocate

TIMES = st.lists(st.integers(1, 30).map(float), min_size=1, max_size=6)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(TIMES, min_size=1, max_size=3), st.integers(0, 8))
def test_no_allocation_is_faster_and_none_as_fast_needs_fewer(stages: list[list[float]], more: int) -> None:
    workers = len(stages) + more
    times = {str(j): t for j, t in enumerate(stages)}
    found = allocate(times, workers)
    every = [
        (max(t[w - 1] for t, w in zip(stages, ws)), sum(ws))
        for ws in itertools.product(*(range(1, len(t) + 1) for t in stages))
        if sum(ws) <= workers
    ]
    assert (found.seconds, sum(found.workers.values())) == min(every)
    assert found.seconds == max(times[name][w - 1] for name, w in found.workers.items())


def test_by_hand() -> None:
    halves = {"sample": [12 / w for w in range(1, 9)], "learn": [4 / w for w in range(1, 9)]}
    assert allocate(halves, 8) == Allocation({"sample": 6, "learn": 2}, 2.0)


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"2 stages \(a, b\) need a worker each"):
        allocate({"a": [1.0], "b": [1.0]}, 1)
    with pytest.raises(ConfigError, match="times of a"):
        allocate({"a": [1.0], "b": []}, 3)
    with pytest.raises(ConfigError, match="not a number"):
        allocate({"a": [math.nan]}, 3)
