"""How often problems were solved before a run, and which of them a later one chooses by that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.streams import Stream
from etude.curricula.rates import OfDifficulty
from etude.experience.rollout import Start
from etude.policies.sampling import Sampling
from etude.stages.rates import Rates
from language_toys import Toy

SHARES = [0.0, 0.25, 0.5, 0.75, 1.0]
POOL = [Problem(f"p/{n}", f"{n}>") for n in range(6)]


@pytest.fixture
def rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of the first five problems, each solved as often as it should be, of four solutions; the sixth not."""

    def said(starts: Sequence[Start], context: Any, how: Sampling) -> list[Any]:
        assert how.temperature == 0.6 and len({s.draw.key for s in starts}) == 20 == len(starts)
        numbers = [int(s.problem.id[-1]) for s in starts]
        return [
            SimpleNamespace(group=s.group, info={"success": i % 4 < SHARES[n] * 4}, reward=0.5)
            for i, (s, n) in enumerate(zip(starts, numbers))
        ]

    monkeypatch.setattr("etude.stages.rates.rollout", said)
    part = Rates(called="rates", samples=4, temperature=0.6)
    rows = part.rows_by(POOL[:5], Toy(), None, 0)  # type: ignore[arg-type]
    assert [row["rate"] for row in rows] == SHARES and [row["id"] for row in rows] == [p.id for p in POOL[:5]]
    path = tmp_path / "rates.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def chosen(rates: str, **fields: Any) -> list[int]:
    part = OfDifficulty(rates=rates, **fields).bind()
    return sorted({int(p.id[-1]) for p in part.choose(POOL, 24, Stream(0))})


def test_problems_are_parted_by_how_often_they_were_solved(rates: str) -> None:
    assert chosen(rates, above=0.5) == [3, 4] and chosen(rates, above=0.0, most=0.5) == [1, 2]
    assert chosen(rates, above=None, most=0.0) == [0] and chosen(rates, above=None, most=0.25) == [0, 1]
    assert chosen(rates, above=None) == [0, 1, 2, 3, 4] and chosen("", above=None) == [0, 1, 2, 3, 4, 5]


def test_limits_that_no_problem_keeps_are_refused(rates: str) -> None:
    with pytest.raises(ConfigError, match="most must be larger than above"):
        OfDifficulty(above=0.5, most=0.5)
    with pytest.raises(ConfigError, match=r"of 5 problems in .* none was solved more often than 0\.8 and at most 0\.9"):
        chosen(rates, above=0.8, most=0.9)
    rows = [json.loads(line) for line in Path(rates).read_text().splitlines()]
    Path(rates).write_text("".join(json.dumps({**row, "rate": 1.0}) + "\n" for row in rows))
    with pytest.raises(ConfigError, match=r"none was solved at most 0; set"):
        chosen(rates, above=None, most=0.0)
