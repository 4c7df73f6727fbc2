"""Cells of experiments are run folders: found again when they are done, gone on with when they were stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.experiments import cells
from etude.experiments.arms import enumerable, variant
from etude.experiments.cells import Cell, at_a_time, kept_in, recorded, spread, trained
from etude.loops.enumerable import EnumerableLoop
from etude.loops.language import LanguageLoop
from etude.runtime import disk, environment
from etude.runtime.interrupts import Interrupted
from etude.tasks.language.compose import Compose
from etude.tasks.tabular.enumerable import Enumerable
from plain_cells import whose

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = Cell("small", variant("grpo", {"problems": 4, "experience.size": 4}), Compose(levels=(2,)), 7, 4)
STEADY = ("step", "loss", "reward", "accuracy", "watched")


def steady(metrics: list[dict[str, Any]]) -> list[list[Any]]:
    """What does not depend on the clock."""
    return [[line.get(name) for name in STEADY] for line in metrics]


def stop_at_two(loop: LanguageLoop) -> int:
    if loop.finished == 2:
        os.kill(os.getpid(), signal.SIGTERM)
    return loop.finished


def finished(loop: LanguageLoop) -> int:
    return loop.finished


@pytest.mark.slow
def test_a_cell_that_was_stopped_goes_on_to_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole = trained(SMALL, finished)
    assert [line["watched"] for line in whole] == [1, 2, 3, 4]
    with kept_in(tmp_path):
        with pytest.raises(Interrupted):
            trained(SMALL, stop_at_two)
        steps: list[int] = []
        step = LanguageLoop.step
        monkeypatch.setattr(LanguageLoop, "step", lambda self: steps.append(self.finished) or step(self))
        _, gone_on = trained(SMALL, finished)
    assert steps == [2, 3]
    assert steady(gone_on) == steady(whole)


@pytest.mark.slow
def test_a_finished_cell_is_found_again_and_another_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kept_in(tmp_path):
        loop, metrics = trained(SMALL)
        steps: list[int] = []
        monkeypatch.setattr(LanguageLoop, "step", lambda self: steps.append(1))
        again, found = trained(SMALL)
    assert steady(found) == steady(metrics) and not steps
    assert all(a.equal(b) for a, b in zip(loop.policy.parameters(), again.policy.parameters(), strict=True))
    others = [
        Cell("small", SMALL.method.replace(problems=3), SMALL.task, 7, 4),
        Cell("small", SMALL.method, Compose(levels=(1,)), 7, 4),
        Cell("small", SMALL.method, SMALL.task, 8, 4),
        Cell("small", SMALL.method, SMALL.task, 7, 5),
        Cell("small", SMALL.method, SMALL.task, 7, 4, "blank:1x16"),
    ]
    assert len({cell.folder() for cell in (SMALL, *others)}) == 6


@pytest.mark.slow
def test_without_a_place_to_keep_them_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells.tempfile, "tempdir", str(tmp_path))
    trained(SMALL)
    assert not list(tmp_path.iterdir())


def test_exact_curves_are_those_of_the_loop_step_by_step() -> None:
    method, task = variant("grpo", {"experience.size": 4}), Enumerable(prompts=2)
    loop = EnumerableLoop(method, task, seeds=range(1000, 1003), steps=3)
    rows = [loop.exact()]
    for _ in range(3):
        loop.step()
        rows.append(loop.exact())
    found = enumerable(method, task, seeds=range(1000, 1003), steps=3)
    assert set(found.curves) == set(rows[0])
    for name, curve in found.curves.items():
        assert np.array_equal(curve, np.stack([np.asarray(row[name], dtype=np.float64) for row in rows]))


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_processes_keep_their_cells_in_the_same_place(tmp_path: Path) -> None:
    with kept_in(tmp_path):
        cells.spread(_train_one, [1, 2], workers=2)
    assert len(list(tmp_path.glob("small-*/FINISHED"))) == 2


def _train_one(seed: int) -> None:
    trained(Cell("small", SMALL.method, SMALL.task, seed, 1))


def test_a_recorded_result_is_found_again_and_that_of_another_cell_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def compute() -> dict[str, list[float]]:
        asked.append(len(asked))
        return {"scores": [0.1 + asked[-1], float("inf")]}

    with kept_in(tmp_path):
        first = recorded("arm 100", [{"rate": 0.1}, 100], compute)
        assert recorded("arm 100", [{"rate": 0.1}, 100], compute) == first == {"scores": [0.1, float("inf")]}
        recorded("arm 100", [{"rate": 0.2}, 100], compute)
        recorded("arm 101", [{"rate": 0.1}, 100], compute)
        monkeypatch.setattr(environment, "version", lambda name: "another")
        recorded("arm 100", [{"rate": 0.1}, 100], compute)
    assert asked == [0, 1, 2, 3]
    assert len(list(tmp_path.glob("arm-10*/result.json"))) == 4


def test_a_result_that_was_half_written_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(fd: int, data: bytes) -> None:
        os.write(fd, data[: len(data) // 2])
        raise KeyboardInterrupt

    with kept_in(tmp_path):
        with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
            stopped.setattr(disk, "write", half)
            recorded("arm", [], lambda: [12, 34])
        assert list(tmp_path.glob("arm-*/*"))
        assert recorded("arm", [], lambda: [56, 78]) == [56, 78]


def test_results_are_the_same_whether_they_are_kept_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compute() -> dict[Any, Any]:
        return {1: (0.1, 0.2)}

    monkeypatch.setattr(cells.tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    alone = recorded("arm", [], compute)
    assert not list(tmp_path.iterdir())
    with kept_in(tmp_path):
        assert recorded("arm", [], compute) == recorded("arm", [], compute) == alone == {"1": [0.1, 0.2]}


def test_so_many_processes_at_a_time_as_are_asked_for() -> None:
    with at_a_time(1):
        assert set(spread(whose, range(3))) == {os.getpid()}
    with at_a_time(2):
        others = set(spread(whose, range(3)))
    assert os.getpid() not in others and len(others) <= 2
    with at_a_time(2):
        assert set(spread(whose, range(3), workers=1)) == {os.getpid()}, "what the caller says comes first"


def alive(process: int) -> bool:
    """Whether it is there, and no mere entry that nobody has asked for."""
    stat = Path(f"/proc/{process}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_nobody_goes_on_for_an_experiment_that_was_killed(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "plain_cells", str(tmp_path)]
    parent = subprocess.Popen(program, cwd=Path(__file__).parents[1])
    until = time.monotonic() + 60
    while len(found := list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    children = [int(path.name) for path in found]
    assert len(children) == 2 and all(map(alive, children))
    parent.kill()
    parent.wait()
    until = time.monotonic() + 20
    while any(map(alive, children)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, children))
