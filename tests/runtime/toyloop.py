"""A small loop with every kind of state (weights, momentum, random streams, a replay), and ways to run it.

As a script: `python toyloop.py FOLDER STEPS EVERY PAUSE` starts or resumes a run and exits as the command line does.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

from etude.core.errors import EtudeError, RunFolderError
from etude.core.loop import StepReport
from etude.core.streams import Stream
from etude.runtime.checkpoints import load_json, load_tensors, save_json, save_tensors
from etude.runtime.folder import RunFolder
from etude.runtime.progress import Progress
from etude.runtime.run import Run, RunResult

METHOD = {"id": "toy", "optimizer": {"part": "sgd", "lr": 0.1}}


class ToyLoop:
    """Linear regression by momentum on fresh data mixed with a replay of old losses."""

    headline = "loss"

    def __init__(self, seed: int = 0, size: int = 5, pause: float = 0.0) -> None:
        self.finished, self.pause = 0, pause
        self.stream = Stream(seed, ("toy",))
        self.weights, self.momentum = torch.zeros(size), torch.zeros(size)
        self.replay: list[float] = []

    def step(self) -> StepReport:
        time.sleep(self.pause)
        x = torch.randn(4, len(self.weights), generator=self.stream.torch)
        error = x @ self.weights - x.sum(1) + float(self.stream.numpy.normal())
        self.momentum = 0.9 * self.momentum + x.T @ error / 4
        self.weights = self.weights - 0.1 * self.momentum
        self.replay = [*self.replay, float(error.square().mean())][-3:]
        self.finished += 1
        metrics = {"loss": self.replay[-1], "mean": sum(self.replay) / len(self.replay), "nothing": float("nan")}
        text = "é\n" + "x" * int(self.stream.numpy.integers(9))
        return StepReport(metrics, [{"text": text, "reward": r} for r in self.replay])

    def save(self, folder: Path) -> None:
        save_tensors(folder / "state.safetensors", {"weights": self.weights, "momentum": self.momentum})
        state = {"finished": self.finished, "replay": self.replay, "stream": self.stream.state_dict()}
        save_json(folder / "state.json", state)

    def load(self, folder: Path) -> None:
        tensors, state = load_tensors(folder / "state.safetensors"), load_json(folder / "state.json")
        self.weights, self.momentum = tensors["weights"], tensors["momentum"]
        self.finished, self.replay = state["finished"], state["replay"]
        self.stream.load_state_dict(state["stream"])


def open_folder(path: Path, **config: Any) -> RunFolder:
    """Resume the run if it got anywhere, else start it: what a user does after a kill."""
    try:
        return RunFolder.resume(path)
    except RunFolderError:
        return RunFolder.create(path, METHOD, {"seed": 0, "task": "toy", **config})


def go(path: Path, steps: int = 5, every: int | None = 2, loop: ToyLoop | None = None, **options: Any) -> RunResult:
    """Run to the end, from wherever the folder stands."""
    loop = loop or ToyLoop()
    options.setdefault("progress", Progress(steps, quiet=True))
    with open_folder(path) as folder:
        return Run(folder, loop, steps, checkpoint_every=every, **options).execute()


def outcome(path: Path) -> dict[str, bytes]:
    """Everything that must not depend on how often a run was stopped: logs and newest checkpoint, byte by byte."""
    last = max((path / "checkpoints").glob("step-*"), key=lambda p: int(p.name[5:]))
    files = [*path.glob("*.jsonl"), path / "FINISHED", *last.rglob("*")]
    return {str(f.relative_to(path)): f.read_bytes() for f in files}


if __name__ == "__main__":
    torch.set_num_threads(1)
    where, steps, every, pause = sys.argv[1:]
    try:
        go(Path(where), int(steps), int(every), ToyLoop(pause=float(pause)), progress=Progress(int(steps)))
    except EtudeError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
