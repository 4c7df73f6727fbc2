"""ROLL: what it changes, and what the schedules of its claim take."""

from __future__ import annotations

import pytest

import etude
from etude.core.registry import get_method
from etude.experiments.systems import roll as experiment
from etude.filters.first import FirstGroups
from etude.filters.informative import InformativeGroups


def test_it_changes_which_groups_are_learned_from_and_nothing_else() -> None:
    assert get_method("roll").diff(get_method("grpo")) == {"filters": ((), (InformativeGroups(), FirstGroups()))}


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


@pytest.mark.slow
def test_it_goes_on_with_a_bound_as_if_it_had_not_been_stopped(tmp_path: object) -> None:
    def last(name: str, **given: object) -> list[dict[str, float]]:
        run = etude.train(
            "roll", "compose", steps=3, evaluate=0, quiet=True, threads=1, bound=1, out=f"{tmp_path}/{name}",
            checkpoint_every=1, set=["problems=2", "experience.size=3", "filters.first-groups.extra=2"], **given,
        )  # fmt: skip
        return [{k: v for k, v in m.items() if "second" not in k} for m in run.metrics]

    metrics = last("here")
    assert [m["lag"] for m in metrics] == [0, 1, 1]
    assert sum(m["aborted"] for m in metrics) > 0
    assert last("elsewhere", on="processes") == metrics
