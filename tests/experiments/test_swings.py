"""Experiments on logs: what both arms learned from is in the pair, by its fingerprint."""

from __future__ import annotations

from typing import Any

import pytest

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experiments import swings
from etude.experiments.on_logs import fingerprint


@pytest.mark.slow
def test_a_pair_says_what_was_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the same seed and way of acting, wherever it is made; it is kept with the pair."""
    monkeypatch.setattr(swings, "spread", lambda task, runs: [[0.0, 1.0] for _ in runs])
    monkeypatch.setattr(swings, "EPISODES", 2)
    arm, baseline = get_method("iql"), get_method("bc")

    def pairs(noises: tuple[float, ...], seeds: tuple[int, ...] = (1, 2)) -> list[Pair]:
        return swings.compared(seeds, arm, baseline, noises, {}, {})

    first, again, other = pairs(swings.NARROW), pairs(swings.NARROW, (2, 1)), pairs(swings.MIXED)
    assert [p.data for p in first] == [p.data for p in reversed(again)]
    assert len({p.data for p in (*first, *other)}) == 4
    assert [p.data for p in swings.against_both(first, first, "beside")] == [p.data for p in first]
    kept: Any = first[0].to_json()
    assert kept["data"] == first[0].data and Pair.from_json(kept) == first[0]
    assert "data" not in Pair(seed=1, arm={"end": 0.5}).to_json()


def test_a_fingerprint_is_of_every_number_and_name() -> None:
    columns = swings.swings(3, swings.NARROW, episodes=2)
    other = {**columns, "rewards": columns["rewards"].copy()}
    assert fingerprint(other) == fingerprint(dict(reversed(columns.items())))
    other["rewards"][7] += 1e-3
    renamed = {("terminals" if k == "timeouts" else k): v for k, v in columns.items()}
    assert len({fingerprint(columns), fingerprint(other), fingerprint(renamed)}) == 3
