"""Runs that end before their last step."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest
from toyloop import ToyLoop, go

from etude.core.errors import ConfigError, UnknownNameError
from etude.runtime import run
from etude.runtime.jsonl import JsonLines
from etude.runtime.looks import Look, best
from etude.runtime.stopping import Stopping, StopWhen, parse_stop


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
    assert json.loads((tmp_path / "run" / "STOPPED").read_text()) == {"why": done.why}
    again = go(tmp_path / "run", 12, None)
    assert (again.status, again.step) == ("finished", 12)
    assert not (tmp_path / "run" / "STOPPED").exists()
    assert [row["loss"] for row in JsonLines.read(tmp_path / "run" / "metrics.jsonl")] == losses


def test_a_clock_that_has_run_out_ends_a_run_after_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr(run, "monotonic", lambda: float(next(ticks)))
    done = go(tmp_path / "run", 100, None, stopping=Stopping(minutes=0.5))
    assert done.status == "stopped" and 1 <= done.step < 100
    assert done.why == "Stopped early: 0.5 minutes are over."


def test_what_nothing_measures_is_said_after_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(
        UnknownNameError, match=r"no metric to stop at named 'los'. Did you mean 'loss'.*: start again\."
    ):
        go(tmp_path / "run", 3, None, stopping=Stopping(StopWhen.parse("los < 1")))


def test_evaluations_count_by_split_and_members_by_their_mean(tmp_path: Path) -> None:
    looks = iter([Look({"test": {"score": score}}) for score in ([0.0, 1.0], [1.0, 1.0], 1.0)])
    stopping = Stopping(StopWhen.parse("test/score > 0.9"), evaluated=["test/score"])
    done = go(tmp_path / "run", 9, None, look=lambda: next(looks), look_every=2, stopping=stopping)
    assert (done.status, done.step) == ("stopped", 4)


def test_a_number_at_the_last_step_is_no_early_end(tmp_path: Path) -> None:
    done = go(tmp_path / "run", 1, None, stopping=Stopping(StopWhen.parse("loss > -1")))
    assert (done.status, done.why) == ("finished", None)


SCORES = [0.5, 0.7, 0.6, 0.7, 0.4, 0.9, 0.1]
"""0.7, at the second look, is not beaten by the three after it; at the sixth there is 0.9."""


def looking(folder: Path, steps: int, patience: int) -> run.RunResult:
    """A run that is looked at after every second step."""
    loop = ToyLoop()
    stopping = Stopping(parse_stop(f"no better test/score in {patience}"), evaluated=["test/score"])
    look = lambda: Look({"test": {"score": SCORES[loop.finished // 2 - 1]}})  # noqa: E731
    return go(folder, steps, None, loop, look=look, look_every=2, stopping=stopping)


def test_patience_ends_a_run_that_gets_no_better(tmp_path: Path) -> None:
    done = looking(tmp_path / "run", 14, 3)
    assert (done.status, done.step) == ("stopped", 10)
    assert done.why == "Stopped early: test/score was not higher than 0.7 in 3 evaluations."
    assert looking(tmp_path / "longer", 14, 4).status == "finished"


def test_patience_counts_on_in_a_run_that_goes_on(tmp_path: Path) -> None:
    assert looking(tmp_path / "run", 7, 3).step == 7  # 0.5, 0.7, 0.6
    assert looking(tmp_path / "run", 14, 3).step == 10


@pytest.mark.slow
def test_patience_with_a_metric_of_every_step(tmp_path: Path) -> None:
    go(tmp_path / "whole", 40, None)
    losses = [row["loss"] for row in JsonLines.read(tmp_path / "whole" / "metrics.jsonl")]
    least = [i for i in range(len(losses)) if losses[i] == min(losses[: i + 1])]  # steps with a new least loss
    gaps = [b - a for a, b in zip(least, [*least[1:], len(losses) + 9])]
    first = next(a for a, gap in zip(least, gaps) if gap > 5)
    for name, steps in {"at once": [40], "in two": [first + 3, 40]}.items():
        for until in steps:
            done = go(tmp_path / name, until, None, stopping=Stopping(parse_stop("no lower loss in 5")))
        assert (done.status, done.step) == ("stopped", first + 1 + 5)


@pytest.mark.parametrize(
    "text", ["no test/score in 5", "no better in 5", "no better test/score in 0", "no better a in x"]
)
def test_what_is_no_patience_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no better test/pass@1 in 5"):
        parse_stop(text)


def test_a_loss_is_better_when_it_is_lower() -> None:
    with pytest.raises(ConfigError, match="say 'no lower value_loss in N'"):
        parse_stop("no better value_loss in 3")


def test_the_best_evaluation_is_the_earliest_of_equal_ones() -> None:
    logged = [{"step": 2 * i + 2, "test": {"score": x}, "intervals": {"score": [x - 0.1, x + 0.1]}}
              for i, x in enumerate(SCORES[:5])]  # fmt: skip
    found = best(logged)
    assert found is not None and found[:3] == ("test/score", 4, 0.7)
    assert found.sentence() == (
        "Best of 5 evaluations by test/score: 0.7 [0.6, 0.8] after step 4; the last, after step 10, 0.4."
    )
    lowest = best(logged, "test/score", lower=True)
    assert lowest is not None and lowest.sentence().endswith("0.4 [0.3, 0.5] after step 10; the last.")
    assert best([]) is None and best(logged, "test/other") is None


def test_an_evaluation_without_a_value_is_not_the_best() -> None:
    """NaN is logged as null: of episodes that never ended there is no return."""
    logged = [{"step": step, "test": {"return": value}} for step, value in ((1, None), (2, -3.0), (3, [None, 1.0]))]
    found = best(logged)
    assert found is not None and (found.step, found.among) == (2, 1)
    assert best(logged[:1]) is None
