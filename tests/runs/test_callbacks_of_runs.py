"""Callbacks of whole runs: what they see, how they are named, and that no number depends on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import etude
from etude.core.errors import UnknownNameError
from etude.runtime.jsonl import JsonLines

SMALL: dict[str, dict[str, Any]] = {
    "language": {
        "method": "grpo", "task": "compose", "steps": 2, "evaluate": 4, "evaluate_every": 1, "evaluate_samples": 2,
        "set": {"problems": 2, "experience.size": 4, "optimizer.lr": 0.01},
    },
    "control": {
        "method": "ppo", "task": "cartpole", "steps": 64, "evaluate": 2, "seeds": 2,
        "set": {"experience.environments": 2, "experience.steps": 16, "policy.network.hidden": "8",
                "critic.network.hidden": "8"},
    },
    "enumerable": {"method": "grpo", "task": "enumerable", "steps": 2, "seeds": 2},
}  # fmt: skip


class Watching:
    """Notes what it is told, and reads the weights."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_start(self, run: Any) -> None:
        self.seen.append(f"start {run.step} of {run.steps}")

    def on_step(self, run: Any) -> None:
        torch.rand(3)
        assert run.policy is not None and run.metrics
        self.seen.append(f"step {run.step}")
        run.add("watched", 1.0)

    def on_evaluation(self, run: Any) -> None:
        self.seen.append(f"evaluation {run.step}")
        assert all(isinstance(v, float) for v in run.evaluation.values())

    def on_end(self, run: Any) -> None:
        self.seen.append(f"end {run.step} {run.why}")


def numbers(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if "second" not in k} for line in JsonLines.read(folder / "metrics.jsonl")]


def weights(folder: Path) -> dict[str, bytes]:
    last = max((folder / "checkpoints").glob("step-*"), key=lambda p: int(p.name[5:]))
    return {p.name: p.read_bytes() for p in last.rglob("*.safetensors")}


@pytest.mark.slow
@pytest.mark.parametrize("world", SMALL)
def test_numbers_and_weights_are_the_same_with_and_without(world: str, tmp_path: Path) -> None:
    watching = Watching()
    plain = etude.train(**SMALL[world], out=tmp_path / "plain", quiet=True).folder
    told = etude.train(**SMALL[world], out=tmp_path / "told", quiet=True, callbacks=[watching]).folder
    lines = numbers(told)
    assert [line.pop("watched") for line in lines] == [1.0, 1.0]
    assert lines == numbers(plain)
    assert weights(told) == weights(plain)
    assert watching.seen[0] == "start 0 of 2" and watching.seen[-1] == "end 2 None"
    assert [s for s in watching.seen if s.startswith("step")] == ["step 1", "step 2"]
    assert watching.seen[1] == "evaluation 0" and watching.seen[-2] == "evaluation 2"


FILE = """
class Slack:
    def on_step(self, run):
        with open(run.folder / "said.txt", "a") as file:
            print(run.step, file=file)
        if run.step == 1:
            run.stop("seen enough")
"""


@pytest.mark.slow
def test_a_named_callback_is_recorded_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(FILE)
    done = etude.train(**SMALL["enumerable"], out="run", quiet=True, callbacks="my.py:Slack")
    assert (done.steps, done.notes[0]) == (1, "Stopped early: seen enough.")
    assert 'callbacks = ["my.py:Slack"]' in Path("run/run.toml").read_text()
    monkeypatch.chdir(tmp_path / "run")
    assert etude.resume(tmp_path / "run", quiet=True).steps == 2
    assert Path("said.txt").read_text().split() == ["1", "2"]


@pytest.mark.slow
def test_a_run_goes_on_without_a_callback_that_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Once:
        def on_step(self, run: Any) -> None:
            run.stop("once")

    folder = etude.train(**SMALL["enumerable"], out=tmp_path / "run", quiet=True, callbacks=[Once]).folder
    assert json.loads((folder / "config.json").read_text())["callbacks"] == ["<Once>"]
    assert "callbacks" not in (folder / "run.toml").read_text()
    assert etude.resume(folder, quiet=True).steps == 2
    assert "goes on without its callback <Once> (it only lived in Python)" in capsys.readouterr().err


def test_a_name_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(FILE)
    with pytest.raises(UnknownNameError, match="Did you mean 'Slack'"):
        etude.train(**SMALL["enumerable"], out=tmp_path / "run", callbacks=[f"{tmp_path / 'my.py'}:Slak"])
    assert not (tmp_path / "run").exists()
