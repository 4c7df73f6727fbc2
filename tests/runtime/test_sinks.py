"""Sinks: the calls that reach them, and that none can hurt a run."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etude.core.errors import MissingExtraError, UnknownNameError
from etude.runtime.sinks import Guarded, open_sinks

SAID: list[str] = []


class Fake:
    """Stands in for the `wandb` or `trackio` module, and for the run that its `init` returns."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def init(self, **options: Any) -> Fake:
        self.calls.append(options)
        return self

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.calls.append((step, metrics))

    def finish(self) -> None:
        self.calls.append("finish")


@pytest.mark.parametrize(("name", "fresh"), [("wandb", None), ("trackio", "never")])
def test_wandb_and_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fresh: str | None) -> None:
    folder = tmp_path / "grpo-compose-0"
    for step, resume in ((0, fresh), (3, "allow")):
        fake = Fake()
        monkeypatch.setitem(sys.modules, name, fake)  # type: ignore[arg-type]
        sinks = Guarded(open_sinks([name], folder, {"lr": 0.1}, step, SAID.append), SAID.append)
        sinks.log(step + 1, {"loss": 0.5, "bad": math.nan, "text": "no number", "count": 2})
        sinks.close()
        started, logged, end = fake.calls
        expected = {"project": "etude", "name": "grpo-compose-0", "config": {"lr": 0.1}, "resume": resume}
        assert expected.items() <= started.items()
        assert logged == (step + 1, {"loss": 0.5, "count": 2.0}) and end == "finish"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_forgets_the_steps_that_were_cut(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first, last in ((0, 4), (2, 6)):  # the second session goes on from step 2
        sinks = Guarded(open_sinks(["tensorboard"], tmp_path, {}, first, SAID.append), SAID.append)
        for step in range(first + 1, last + 1):
            sinks.log(step, {"loss": step + first / 10})
        sinks.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, round(e.value, 3)) for e in events.Scalars("loss")] == [
        (1, 1.0), (2, 2.0), (3, 3.2), (4, 4.2), (5, 5.2), (6, 6.2)]  # fmt: skip


def test_missing_and_unknown_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "trackio", "tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match=r"pip install 'etude\[sinks\]'"):
            open_sinks([name], tmp_path, {}, 0, SAID.append)
    with pytest.raises(UnknownNameError, match=r"no sink named 'wandbb'. Did you mean 'wandb'"):
        open_sinks(["wandbb"], tmp_path, {}, 0, SAID.append)


def test_a_sink_that_cannot_start_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise ConnectionError("no network")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))  # type: ignore[arg-type]
    said: list[str] = []
    assert open_sinks(["wandb"], tmp_path, {}, 0, said.append) == []
    assert said == ["wandb failed (ConnectionError: no network) and gets no more metrics; metrics.jsonl has them all."]


def test_the_others_go_on() -> None:
    class Breaks:
        name = "breaks"

        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            raise ValueError("full")

        def close(self) -> None:
            raise AssertionError

    class Works:
        name = "works"
        seen: list[int] = []  # noqa: RUF012

        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            self.seen.append(step)

        def close(self) -> None:
            raise OSError("late")

    said: list[str] = []
    sinks = Guarded([Breaks(), Works()], said.append)
    sinks.log(1, {"a": 1.0})
    sinks.log(2, {"a": 1.0})
    sinks.close()
    assert Works.seen == [1, 2]
    assert [s.split(" ", 3)[:3] for s in said] == [
        ["breaks", "failed", "(ValueError:"],
        ["works", "failed", "(OSError:"],
    ]
