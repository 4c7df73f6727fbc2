"""Runs that end before their last step."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from toyloop import go

from etude.core.errors import ConfigError, UnknownNameError
from etude.runtime import run
from etude.runtime.jsonl import JsonLines
from etude.runtime.stopping import Stopping, StopWhen


@pytest.mark.parametrize(
    ("text", "met"),
    [("a > 1", False), ("a >= 1", True), ("a<1.5", True), ("a <= 0.5", False), ("a > -1e-1", True), ("b > 0", False)],
)
def test_a_comparison_says_what_it_says(text: str, met: bool) -> None:
    assert StopWhen.parse(text).met({"a": 1.0}) is met


@pytest.mark.parametrize("text", ["", "reward", "> 3", "reward > ", "reward == 3", "reward > 1 2", "reward > 1e"])
def test_what_is_no_comparison_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a metric"):
        StopWhen.parse(text)


def test_a_run_ends_where_its_number_is_good_enough_and_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    go(tmp_path / "whole", 12, None)
    losses = [row["loss"] for row in JsonLines.read(tmp_path / "whole" / "metrics.jsonl")]
    bound = sorted(losses)[len(losses) // 2]
    first = next(i + 1 for i, loss in enumerate(losses) if loss < bound)
    assert first < 12
    done = go(tmp_path / "run", 12, None, stopping=Stopping(StopWhen.parse(f"loss < {bound}")))
    assert (done.status, done.step, done.steps) == ("stopped", first, 12)
    assert done.checkpoint.name == f"step-{first}"
    assert done.why is not None and done.why.startswith("Stopped early: loss is ")
    again = go(tmp_path / "run", 12, None)
    assert (again.status, again.step) == ("finished", 12)
    assert [row["loss"] for row in JsonLines.read(tmp_path / "run" / "metrics.jsonl")] == losses


def test_a_clock_that_has_run_out_ends_a_run_after_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr(run, "monotonic", lambda: float(next(ticks)))
    done = go(tmp_path / "run", 100, None, stopping=Stopping(minutes=0.5))
    assert done.status == "stopped" and 1 <= done.step < 100
    assert done.why == "Stopped early: 0.5 minutes are over."


def test_what_nothing_measures_is_said_after_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"no metric to stop at named 'los'. Did you mean 'loss'.*safe at step"):
        go(tmp_path / "run", 3, None, stopping=Stopping(StopWhen.parse("los < 1")))


def test_evaluations_count_by_split_and_members_by_their_mean(tmp_path: Path) -> None:
    looks = iter([{"test": {"score": [0.0, 1.0]}}, {"test": {"score": [1.0, 1.0]}}, {"test": {"score": 1.0}}])
    stopping = Stopping(StopWhen.parse("test/score > 0.9"), evaluated=["test/score"])
    done = go(tmp_path / "run", 9, None, look=lambda: next(looks), look_every=2, stopping=stopping)
    assert (done.status, done.step) == ("stopped", 4)


def test_a_number_at_the_last_step_is_no_early_end(tmp_path: Path) -> None:
    done = go(tmp_path / "run", 1, None, stopping=Stopping(StopWhen.parse("loss > -1")))
    assert (done.status, done.why) == ("finished", None)
