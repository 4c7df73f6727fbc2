"""What a session of a run does besides surviving: clock, logs, checkpoints, messages."""

from __future__ import annotations

import json
import signal
from itertools import count, pairwise
from pathlib import Path

import pytest
import torch
from toyloop import ToyLoop, go, open_folder, outcome

from etude.core.errors import CheckpointError, MissingExtraError, NonFiniteError, RewardError
from etude.runtime import checkpoints, run
from etude.runtime.folder import RunFolder
from etude.runtime.jsonl import JsonLines
from etude.runtime.progress import Progress
from etude.runtime.run import Run


class Raising(ToyLoop):
    """Raises an error in its fourth step."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def step(self):
        if self.finished == 3:
            raise self.error
        return super().step()


def test_logs_hold_step_and_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr(run, "monotonic", lambda: next(ticks) * 0.25)
    result = go(tmp_path / "run", 4, 2, episodes_per_step=2)
    rows = list(JsonLines.read(tmp_path / "run" / "metrics.jsonl"))
    assert [list(r) for r in rows] == [["step", "seconds", "loss", "mean", "nothing"]] * 4
    assert [r["step"] for r in rows] == [1, 2, 3, 4]
    assert all(a["seconds"] < b["seconds"] for a, b in pairwise(rows))
    assert rows[0]["nothing"] is None
    assert [e["step"] for e in JsonLines.read(tmp_path / "run" / "episodes.jsonl")] == [1, 2, 2, 3, 3, 4, 4]
    assert (result.status, result.step, result.steps, result.folder) == ("finished", 4, 4, tmp_path / "run")
    assert result.checkpoint == tmp_path / "run" / "checkpoints" / "step-4"


def test_seconds_add_up_over_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 50.0
    monkeypatch.setattr(run, "monotonic", lambda: now)

    class Slow(ToyLoop):
        def step(self):
            nonlocal now
            now += 2.0
            return super().step()

    go(tmp_path / "run", 3, 1, Slow())
    now = 1e6  # another boot, another clock
    go(tmp_path / "run", 5, 1, Slow())
    assert [r["seconds"] for r in JsonLines.read(tmp_path / "run" / "metrics.jsonl")] == [2, 4, 6, 8, 10]
    assert json.loads((tmp_path / "run" / "FINISHED").read_text()) == {"step": 5, "seconds": 10.0}


def test_checkpoints_at_zero_periodically_and_at_the_end(tmp_path: Path) -> None:
    go(tmp_path / "run", 5, 2, keep=10)
    assert [p.name for p in checkpoints.steps(tmp_path / "run" / "checkpoints")] == [
        "step-0", "step-2", "step-4", "step-5"]  # fmt: skip
    go(tmp_path / "few", 5, 2)
    assert [p.name for p in checkpoints.steps(tmp_path / "few" / "checkpoints")] == ["step-4", "step-5"]


def test_automatic_checkpoints_cost_at_most_two_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(run, "monotonic", lambda: now)

    class Timed(ToyLoop):
        def step(self):
            nonlocal now
            now += 5.0
            return super().step()

        def save(self, folder: Path) -> None:
            nonlocal now
            now += 1.0
            super().save(folder)

    go(tmp_path / "run", 25, None, Timed(), keep=99)
    assert [p.name for p in checkpoints.steps(tmp_path / "run" / "checkpoints")] == [
        "step-0", "step-10", "step-20", "step-25"]  # fmt: skip


def test_a_damaged_checkpoint_falls_back_says_so_and_ends_the_same(
    tmp_path: Path, still_clock: None, capsys: pytest.CaptureFixture[str]
) -> None:
    go(tmp_path / "run")
    go(tmp_path / "whole")
    newest = tmp_path / "run" / "checkpoints" / "step-5"
    (newest / "state.json").write_text("{}")
    go(tmp_path / "run")
    said = capsys.readouterr().err
    assert f"{newest} is damaged: state.json has 2 bytes instead of" in said
    assert "Going back to step-4" in said
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    assert (tmp_path / "run" / "checkpoints" / "damaged-5").is_dir()


def test_an_error_of_the_loop_names_the_safe_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RewardError) as raised:
        go(tmp_path / "run", loop=Raising(RewardError("score returned NaN for problem 7.")))
    assert str(raised.value) == (
        "score returned NaN for problem 7. The run is safe at step 2 "
        f"({tmp_path}/run/checkpoints/step-2); go on with: etude train --resume {tmp_path}/run"
    )
    assert len(list(JsonLines.read(tmp_path / "run" / "metrics.jsonl"))) == 3  # what is there stays
    with pytest.raises(MissingExtraError, match=r"pip install 'etude\[peft\]' The run is safe at step 2"):
        go(tmp_path / "run", loop=Raising(MissingExtraError("LoRA", "peft")))
    with pytest.raises(ZeroDivisionError) as bug:
        go(tmp_path / "run", loop=Raising(ZeroDivisionError("a bug")))
    assert str(bug.value) == "a bug" and "safe at step 2" in bug.value.__notes__[0]
    go(tmp_path / "run")


def test_a_non_finite_step_leaves_what_it_needs_to_be_replayed(tmp_path: Path) -> None:
    for _ in range(2):  # a replay that fails the same way replaces what it left
        error = NonFiniteError("Gradients were not finite 3 times in a row.")
        error.batch = {"tokens": torch.tensor([[1, 2]])}  # type: ignore[attr-defined]
        with pytest.raises(NonFiniteError, match=r"What it happened with is in .*/failure/step-3\. The run is safe at"):
            go(tmp_path / "run", loop=Raising(error))
    failure = tmp_path / "run" / "failure" / "step-3"
    assert checkpoints.load_tensors(failure / "batch.safetensors")["tokens"].tolist() == [[1, 2]]
    again = ToyLoop()
    again.load(failure)
    assert again.finished == 3


def test_a_checkpoint_of_another_model_is_refused_and_nothing_is_cut(tmp_path: Path) -> None:
    class Other(ToyLoop):
        def load(self, folder: Path) -> None:
            checkpoints.load_tensors(folder / "state.safetensors")["embedding"]

    class Forgetful(ToyLoop):
        def load(self, folder: Path) -> None:
            pass

    go(tmp_path / "run")
    before = outcome(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"step-5 does not fit this run \(KeyError: 'embedding'\)"):
        go(tmp_path / "run", 9, loop=Other())
    with pytest.raises(CheckpointError, match="put the loop at step 0, not 5"):
        go(tmp_path / "run", 9, loop=Forgetful())
    assert outcome(tmp_path / "run") == before


def test_other_logs_are_cut_back_too_and_lost_lines_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Logging(ToyLoop):
        def step(self):
            self.log.append({"step": self.finished})
            return super().step()

    def session(loop: Logging, steps: int) -> None:
        with open_folder(tmp_path / "run") as folder:
            loop.log = folder.log("more")
            Run(folder, loop, steps, checkpoint_every=2, progress=Progress(steps, quiet=True)).execute()

    session(Logging(), 4)
    with RunFolder.resume(tmp_path / "run") as folder:
        folder.log("more").append({"step": "after the checkpoint"})
    (tmp_path / "run" / "episodes.jsonl").write_bytes(b"")
    session(Logging(), 6)
    assert [r["step"] for r in JsonLines.read(tmp_path / "run" / "more.jsonl")] == [0, 1, 2, 3, 4, 5]
    assert "episodes.jsonl has lost lines since step-4 was written" in capsys.readouterr().err
    assert next(e["step"] for e in JsonLines.read(tmp_path / "run" / "episodes.jsonl")) == 5


def test_a_broken_sink_does_not_stop_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        name = "broken"
        asked = 0

        def log(self, step: int, metrics: object) -> None:
            self.asked += 1
            raise ConnectionError("network down")

        def close(self) -> None:
            raise AssertionError("closed after it was dropped")

    sink = Broken()
    go(tmp_path / "run", sinks=[sink])
    assert sink.asked == 1
    assert capsys.readouterr().err.count("broken failed (ConnectionError: network down)") == 1


def test_nothing_is_left_of_the_signal_handlers(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    go(tmp_path / "run")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
