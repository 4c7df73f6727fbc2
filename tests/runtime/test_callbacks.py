"""What is told how a run goes: when, what it may do, and that nothing of it reaches the training."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toyloop import ToyLoop, go, outcome

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.loop import StepReport
from etude.runtime.callbacks import EVENTS, Callback, Callbacks, RunState, checked
from etude.runtime.jsonl import JsonLines
from etude.runtime.looks import Look


class Diary(Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int]] = []

    def on_step(self, run: RunState) -> None:
        self.lines.append(("step", run.step))

    def on_evaluation(self, run: RunState) -> None:
        self.lines.append((f"evaluation {run.evaluation}", run.step))

    def on_checkpoint(self, run: RunState) -> None:
        assert run.checkpoint is not None
        self.lines.append((run.checkpoint.name, run.step))


def told(folder: Path, callbacks: list[Any], steps: int = 4, loop: ToyLoop | None = None, **options: Any) -> list[str]:
    """Run with callbacks; returns what was said of them."""
    loop, said = loop or ToyLoop(), list[str]()
    go(folder, steps, 2, loop, callbacks=Callbacks(callbacks, RunState(folder, loop, steps), said.append), **options)
    return said


def test_everything_is_told_in_its_order(tmp_path: Path) -> None:
    diary = Diary()
    assert told(tmp_path / "run", [diary], look=lambda: Look({"test": {"score": [1.0, 2.0]}}), look_every=3) == []
    looked = "evaluation {'test/score': 1.5}"
    assert diary.lines == [
        ("step-0", 0), ("step", 1), ("step", 2), ("step-2", 2), ("step", 3), (looked, 3), ("step", 4), ("step-4", 4),
    ]  # fmt: skip


class Noisy(ToyLoop):
    """Draws from the random numbers that everybody shares."""

    def step(self) -> StepReport:
        self.weights = self.weights + 0.01 * (float(torch.rand(())) + random.random() + np.random.rand())
        return super().step()


class Drawing:
    """Draws from them too, and changes the metrics it is shown."""

    def on_step(self, run: RunState) -> None:
        torch.rand(7), random.random(), np.random.rand(3)
        dict.clear(run.metrics)  # type: ignore[arg-type]


def test_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    for name, callbacks in {"plain": [], "told": [Drawing(), Diary()]}.items():
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        told(tmp_path / name, callbacks, loop=Noisy())
    logs = [list(JsonLines.read(tmp_path / name / "metrics.jsonl")) for name in ("plain", "told")]
    assert [{**x, "seconds": 0} for x in map(repr_nan, logs[0])] == [
        {**x, "seconds": 0} for x in map(repr_nan, logs[1])
    ]
    weights = [v for name in ("plain", "told") for k, v in outcome(tmp_path / name).items() if "state.s" in k]
    assert weights[0] == weights[1]


def repr_nan(line: dict[str, Any]) -> dict[str, Any]:
    return {k: repr(v) for k, v in line.items()}


class Broken:
    def on_step(self, run: RunState) -> None:
        raise ValueError("no network")


def test_what_raises_is_said_with_its_name_and_the_run_goes_on(tmp_path: Path) -> None:
    diary = Diary()
    (said,) = told(tmp_path / "run", [Broken(), diary])
    assert said == "Warning: the callback Broken.on_step failed (ValueError: no network). The run goes on."
    assert ("step", 4) in diary.lines
    loop, counted = ToyLoop(), list[str]()
    callbacks = Callbacks([Broken()], RunState(tmp_path, loop, 3), counted.append)
    for _ in range(3):
        callbacks.stepped({})
    callbacks.ended(None)
    assert counted[1:] == ["The callback Broken.on_step failed 3 times."]


class Adding:
    def __init__(self, name: str = "mine") -> None:
        self.name = name

    def on_step(self, run: RunState) -> None:
        run.add(self.name, 10 * run.step)
        if run.step == 3:
            run.stop("enough.")

    def on_evaluation(self, run: RunState) -> None:
        run.add("seen", 1)

    def on_checkpoint(self, run: RunState) -> None:
        run.add("late", 1)


def test_metrics_are_added_and_a_run_is_stopped(tmp_path: Path) -> None:
    said = told(tmp_path / "run", [Adding()], steps=9, look=lambda: Look({"test": {"score": 1.0}}), look_every=2)
    rows = list(JsonLines.read(tmp_path / "run" / "metrics.jsonl"))
    assert [row["mine"] for row in rows] == [10, 20, 30]
    (line,) = JsonLines.read(tmp_path / "run" / "evaluations.jsonl")
    assert line == {"step": 2, "test": {"score": 1.0}, "callbacks": {"seen": 1.0}}
    assert [s.partition("(")[2] for s in said] == [
        "ConfigError: Metrics can be added in on_step and on_evaluation, not in on_checkpoint.). The run goes on."
    ]


def test_a_run_ends_with_the_reason_that_was_given(tmp_path: Path) -> None:
    loop = ToyLoop()
    callbacks = Callbacks([Adding()], RunState(tmp_path / "run", loop, 9), print)
    done = go(tmp_path / "run", 9, 2, loop, callbacks=callbacks)
    assert (done.status, done.step, done.why) == ("stopped", 3, "Stopped early: enough.")


def test_a_metric_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    said = told(tmp_path / "run", [Adding("loss")], steps=2)
    assert any("There is a metric loss already" in sentence for sentence in said)


def test_a_number_that_a_callback_adds_can_end_the_run(tmp_path: Path) -> None:
    from etude.runtime.stopping import Stopping, StopWhen

    loop = ToyLoop()
    callbacks = Callbacks([Adding()], RunState(tmp_path / "run", loop, 9), print)
    done = go(tmp_path / "run", 9, 2, loop, callbacks=callbacks, stopping=Stopping(StopWhen.parse("mine >= 20")))
    assert (done.step, done.why) == (2, "Stopped early: mine is 20.")


def test_what_nothing_would_call_is_refused() -> None:
    class Misspelt:
        def on_steps(self, run: RunState) -> None: ...

    class Needing(Callback):
        def __init__(self, channel: str) -> None: ...

    with pytest.raises(UnknownNameError, match=r"Misspelt named 'on_steps'\. Did you mean 'on_step'"):
        checked(Misspelt())
    with pytest.raises(ConfigError, match="<lambda> has none of the methods on_start"):
        checked(lambda run: None)
    with pytest.raises(ConfigError, match="Needing cannot be made without arguments"):
        checked(Needing)
    assert isinstance(checked(Diary), Diary)
    assert all(hasattr(Callback, event) for event in EVENTS)
