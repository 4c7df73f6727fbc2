"""Workers on the virtual clock: when things are finished, and what actions of different lengths come to."""

from __future__ import annotations

import pytest

from etude.core.errors import ConfigError
from etude.runtime.clock import VirtualClock
from etude.runtime.timing import Finished, finishing, makespan


def test_a_schedule_by_hand() -> None:
    """Three workers: 5 | 2, 4 | 3, 1."""
    seconds, clock = [5.0, 2.0, 3.0, 4.0, 1.0], VirtualClock()
    done = list(finishing(lambda n: seconds[n] if n < 5 else None, 3, clock))
    assert done == [
        Finished(1, 1, 0.0, 2.0), Finished(2, 2, 0.0, 3.0), Finished(4, 2, 3.0, 4.0), Finished(0, 0, 0.0, 5.0),
        Finished(3, 1, 2.0, 6.0),
    ]  # fmt: skip
    assert makespan(seconds, 3, clock) == 6.0 and clock.now() == 12.0
    assert makespan(seconds, 5) == 5.0 and makespan(seconds, 1) == 15.0


def test_nothing_finishes_after_the_end() -> None:
    clock = VirtualClock()
    assert [f.ended for f in finishing(lambda n: 2.0, 1, clock, until=5.0)] == [2.0, 4.0] and clock.now() == 5.0


def test_what_is_next_may_depend_on_what_was_finished() -> None:
    ended: list[int] = []
    for done in finishing(lambda n: None if len(ended) >= 2 else 1.0, 1, VirtualClock()):
        ended.append(done.number)
    assert ended == [0, 1]


def test_fast_actions_are_finished_more_often_and_their_durations_make_up_for_it() -> None:
    """rl4mle's identity (a): in a horizon T actions a are finished pi(a) T / E dt times by each actor, so sums of g dt
    are T sum pi(a) dt g / E dt: with g(a) weighed by dt no action counts more for being fast. Two actors, one for each
    action: each finishes T / dt times, times dt is T."""
    length = {0: 0.5, 1: 2.0}
    for action, dt in length.items():
        done = list(finishing(lambda n, dt=dt: dt, 1, VirtualClock(), until=100.0))  # type: ignore[misc]
        assert len(done) == 100 / dt and len(done) * length[action] == 100.0


def test_without_workers_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="workers must be at least 1"):
        list(finishing(lambda n: 1.0, 0, VirtualClock()))
