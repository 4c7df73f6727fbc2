"""Success rates of problems and the bands that they move through."""

from __future__ import annotations

import pytest
import torch

from etude.core.errors import ConfigError
from etude.curricula.outcomes import Outcomes
from language_toys import random_batch


def bands(rates: list[float], margin: float) -> list[int | None]:
    found = []
    record = Outcomes(history=1, edges=(0.5,), margin=margin).bind()
    for rate in rates:
        record.visit("a", rate)
        found.append(record.band("a"))
    return found


def test_a_band_changes_only_past_the_margin() -> None:
    rates = [0.45, 0.55, 0.65, 0.45, 0.35]
    assert bands(rates, 0.1) == [0, 0, 1, 1, 0]
    assert bands(rates, 0.0) == [0, 1, 1, 0, 0]


def test_the_rate_is_a_mean_over_the_last_visits() -> None:
    record = Outcomes(history=2).bind()
    assert record.rate("a") is None and record.band("a") is None
    for outcome in (1.0, 0.0, 0.5):
        record.visit("a", outcome)
    assert record.rate("a") == 0.25


@pytest.mark.parametrize("any_of, expected", [(False, [0.5, 0.0]), (True, [1.0, 0.0])])
def test_a_group_is_one_visit_and_written_rows_are_none(any_of: bool, expected: list[float]) -> None:
    batch = random_batch((2, 3))
    batch.solved = torch.tensor([True, False, False, False, True])
    batch.written = torch.tensor([False, False, False, False, True])
    record = Outcomes(any_of=any_of).bind()
    record.note(batch)
    names = [batch.episodes[0].problem.id, batch.episodes[2].problem.id]
    assert [record.rate(n) for n in names] == expected


def test_edges_must_rise() -> None:
    with pytest.raises(ConfigError, match="must rise"):
        Outcomes(edges=(0.5, 0.2))
