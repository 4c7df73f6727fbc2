"""ROLL: what it changes, and what the schedules of its claim take."""

from __future__ import annotations

import pytest

from etude.core.registry import get_method
from etude.experiments.systems import roll as experiment
from etude.filters.first import FirstGroups
from etude.filters.informative import InformativeGroups


def test_it_changes_which_groups_are_learned_from_and_nothing_else() -> None:
    grpo = get_method("grpo")
    assert get_method("roll").filters == (InformativeGroups(rounds=3), FirstGroups(extra=4))
    assert get_method("roll").replace(filters=()).diff(grpo) == {}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Four groups of two, with a place and a verifier for every row."""
    for name, value in {"GROUPS": 4, "SIZE": 2, "SIMULATED": 1, "SCORERS": 16, "LOAD": 0.0}.items():
        monkeypatch.setattr(experiment, name, value)
    monkeypatch.setattr(experiment, "VERIFIED", (0.02, 0.02))
    monkeypatch.setattr(experiment, "DROPPED", 0.0)
    return monkeypatch


def longest(seed: int, group: int) -> float:
    """Seconds until a group of two is verified."""
    return experiment.TOKEN * max(experiment.length(seed, row) for row in (2 * group, 2 * group + 1)) + 0.02


@pytest.mark.parametrize("seed", [1, 2])
def test_a_batch_is_full_with_the_longest_or_with_the_fourth(seed: int, small: pytest.MonkeyPatch) -> None:
    assert experiment.seconds(seed) == pytest.approx(max(longest(seed, g) for g in range(4)))
    assert experiment.seconds(seed, extra=3) == pytest.approx(sorted(longest(seed, g) for g in range(7))[3])
    # in batches verification begins when all have ended
    assert experiment.seconds(seed, streaming=False) == pytest.approx(max(longest(seed, g) for g in range(4)))


def test_the_plain_loop_begins_anew_when_all_have_ended(small: pytest.MonkeyPatch) -> None:
    small.setattr(experiment, "drawn", lambda seed, kind, number: float(number != 1))
    small.setattr(experiment, "DROPPED", 0.5)
    first, again = max(longest(3, g) for g in range(4)), longest(3, 4)
    assert experiment.seconds(3, streaming=False) == pytest.approx(first + again)
    at_once = max(longest(3, 0), longest(3, 2), longest(3, 3), longest(3, 1) + again)
    assert experiment.seconds(3) == pytest.approx(at_once)


def test_the_filter_of_the_schedules_drops_two_of_five() -> None:
    held = [experiment.drawn(seed, "holds", group) >= experiment.DROPPED for seed in (1, 2) for group in range(1000)]
    assert 0.55 <= sum(held) / len(held) <= 0.65
    assert {experiment.drawn(s, "holds", 3) for s in (1, 1, 2)} == {experiment.drawn(s, "holds", 3) for s in (1, 2)}
