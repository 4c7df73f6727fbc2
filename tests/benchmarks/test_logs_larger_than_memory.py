"""`logs_larger_than_memory.py`, small: what is written is read, the limit is one, and what comes of it is recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import logs_larger_than_memory as benchmark  # noqa: E402

from etude.experience.logs.faults import faults  # noqa: E402
from etude.experience.logs.reading import open_logs  # noqa: E402
from etude.experience.logs.steps import steps_of  # noqa: E402
from etude.experience.logs.table import Raw  # noqa: E402


def test_logs_are_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many bytes as are asked for, in whole episodes with which nothing is wrong."""
    monkeypatch.setattr(benchmark, "LENGTH", 50)
    monkeypatch.setattr(benchmark, "PIECE", 2)
    assert benchmark.write(tmp_path / "logs", 4.5 * 50 * benchmark.ROW) == 250
    logs = open_logs(tmp_path / "logs")
    assert (logs.rows, logs.episodes) == (250, 5) and isinstance(logs.observations, np.memmap)
    assert sum(x.nbytes for x in (logs.observations, logs.actions, logs.rewards, logs.next_observations)) + 2 * 250 == (
        250 * benchmark.ROW
    )
    columns = {
        "observations": logs.observations, "actions": logs.actions, "rewards": logs.rewards,
        "terminals": logs.terminated, "timeouts": logs.truncated, "next_observations": logs.next_observations,
    }  # fmt: skip
    assert faults(steps_of(Raw(tmp_path, columns), False, None), benchmark.SPACES) == []


@pytest.mark.slow
def test_a_small_run_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, scratch = tmp_path / "record.json", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(benchmark.mapped, "place", lambda: scratch)
    benchmark.main(["--gigabytes", "0.001", "--updates", "200", "--output", str(out)])
    found = json.loads(out.read_text())
    assert found["rows"] == 7_000 and found["gigabytes"] == 0.001 and found["limit_gigabytes"] == 2.0
    assert found["updates"] == 250 and found["updates_per_second"] > 0 and 0 < found["own_gigabytes"] < 2
    assert found["a_copy_of_observations"] == "fits" and found["cpu"] and found["torch"]
    assert not list(scratch.iterdir()), "files are removed in the end"


@pytest.mark.slow
def test_the_limit_is_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Less than Python, NumPy and torch take by themselves."""
    with pytest.raises(subprocess.CalledProcessError):
        benchmark.measured(tmp_path / "logs", 0.001, 0.1, 250)
    assert "memory" in capfd.readouterr().err.lower().splitlines()[-1]
