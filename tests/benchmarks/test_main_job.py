"""The main job of two checkouts: what is made of the seconds that their runs took."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from main_job import Arm, summary, table  # noqa: E402


def test_a_ratio_is_the_median_over_rounds_and_not_of_the_medians() -> None:
    old = Arm("OLD", Path(), (), [10.0, 20.0, 30.0], [9.0, 9.0, 9.0])
    new = Arm("NEW", Path(), (), [6.0, 16.0, 21.0], [5.0, 6.0, 7.0])
    first, second = summary([old, new])
    assert (first["ratio"], first["met"]) == (1.0, None)
    assert second["ratios"] == [0.6, 0.8, 0.7] and (second["ratio"], second["met"]) == (0.7, True)
    assert table([first, second]).splitlines()[2:] == [
        "| OLD | 20.0 (10.0 to 30.0) | 9.0 (9.0 to 9.0) | 1.00 (1.00 to 1.00) |  |",
        "| NEW | 16.0 (6.0 to 21.0) | 6.0 (5.0 to 7.0) | 0.70 (0.60 to 0.80) | 0.7: met |",
    ]
    assert not summary([old, Arm("NEW", Path(), (), [7.2, 14.2, 21.6], [1.0, 1.0, 1.0])])[1]["met"]


@pytest.mark.slow
def test_a_run_that_fails_is_said(tmp_path: Path) -> None:
    (tmp_path / "src" / "etude").mkdir(parents=True)
    (tmp_path / "src" / "etude" / "__init__.py").touch()
    (tmp_path / "src" / "etude" / "__main__.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)\n")
    with pytest.raises(SystemExit, match=r"NEW ended with 3:\n\['train', '--steps', '2', .*'--threads', '2'\]"):
        Arm("NEW", tmp_path, ("--threads", "2")).run(2)
