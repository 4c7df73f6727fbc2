"""Returns beside d3rlpy's: each run is trained once, and what the table says of them."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from etude.loops.off_policy import OffPolicyLoop
from log_toys import pendulum_columns, written

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import offline_returns_vs_d3rlpy as benchmark
from _offline_cases import RETURNS, Returned


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(benchmark, "RECORD", tmp_path / "record.jsonl")
    return tmp_path / "record.jsonl"


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("method", RETURNS)
def test_a_run_is_trained_once_and_comes_to_the_same_again(
    method: str, record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "TASK", "pendulum")
    monkeypatch.setattr(benchmark, "PLAYED", 2)
    monkeypatch.setattr(benchmark, "BLOCK", 5)
    monkeypatch.setattr(benchmark, "OffPolicyLoop", partial(OffPolicyLoop, block=5))
    logs, case = written(tmp_path / "swings.npz", pendulum_columns()), Returned(method, 10, 1)
    for _ in range(2):
        benchmark.run(case, "etude", 0, logs)
    (line,) = [json.loads(x) for x in record.read_text().splitlines()]
    assert -2_000 < line["return"] < 0 and len(line["logs"]) == 12
    assert np.mean(benchmark.own(case, 0, logs)) == pytest.approx(line["return"], abs=0.05)


def test_means_that_lie_in_each_others_intervals_agree(record: Path) -> None:
    def add(library: str, method: str, *returns: float, logs: str = "ours") -> None:
        about = {"method": method, "library": library, "updates": RETURNS[method].updates, "logs": logs}
        with record.open("a") as file:
            file.writelines(json.dumps({**about, "seed": k, "return": x}) + "\n" for k, x in enumerate(returns))

    assert len(benchmark.table().splitlines()) == 2, "nothing was run"
    add("etude", "td3-bc", 900.0, logs="of another processor")
    add("etude", "td3-bc", 100.0, 110.0, 120.0), add("d3rlpy", "td3-bc", 108.0, 118.0, 113.0)
    add("etude", "iql", 100.0, 101.0), add("d3rlpy", "iql", 200.0, 201.0, 199.0)
    add("etude", "cql", 100.0), add("d3rlpy", "cql", 100.0)
    rows = [[cell.strip() for cell in row.strip("| ").split("|")] for row in benchmark.table().splitlines()[2:]]
    assert [(row[0], row[2], row[-1]) for row in rows] == [("td3-bc", "3", "yes"), ("iql", "2 and 3", "no")]
    half = 4.302652730 * 10 / np.sqrt(3)  # t of two degrees of freedom
    assert rows[0][3] == f"110 ({110 - half:.0f} to {110 + half:.0f})" and rows[0][5].startswith("-3 (")
