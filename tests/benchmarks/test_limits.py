"""Records of speed that are there: the table in the README is made of them without measuring anything again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RECORDS = sorted((BENCHMARKS / "records").glob("*_speed_vs_*.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_still_makes_the_table(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _limits

    cases = json.loads(path.read_text())["cases"]
    assert cases
    for name, row in cases.items():
        lines = _limits.told(name, row).splitlines()
        assert len(lines) == len(row["case"]["targets"]) and all(line.startswith(f"| {name}, ") for line in lines)
    sys.modules.pop("_limits")
