"""A run of two players with two models, killed at any change that it makes to the disk, ends as if it never stopped."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from test_replay_kills import outcome
from test_runtime_kill import killed, operations
from toyloop import open_folder

from etude.core.registry import get_method
from etude.experience.groups import Groups
from etude.experience.roles import OwnWeights, Plays
from etude.loops.language import LanguageLoop
from etude.optimizers.adam import AdamW
from etude.runtime import checkpoints, environment, round_trip
from etude.runtime.progress import Progress
from etude.runtime.run import Run
from etude.tasks.agents.signals import Signals
from language_toys import make_loop

pytestmark = pytest.mark.usefixtures("one_thread", "still_clock")
BEGUN, STEPS = 1, 2


def loop() -> LanguageLoop:
    method: Any = get_method("grpo").replace(
        experience=Groups(size=2), problems=2, optimizer=AdamW(lr=1e-3),
        roles=(Plays("sender"), Plays("receiver", weights=OwnWeights(called="ears"))),
    )  # fmt: skip
    return make_loop(method, Signals(), steps=STEPS)


def go(path: Path, steps: int = STEPS) -> Any:
    with open_folder(path) as folder:
        progress = Progress(steps, quiet=True)
        return Run(folder, loop(), steps, checkpoint_every=1, keep=1, progress=progress).execute()


@pytest.mark.slow
def test_killed_at_every_write_with_two_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = environment.record(0)
    monkeypatch.setattr(environment, "record", lambda seed: recorded)
    monkeypatch.setattr(round_trip, "room", lambda *_: False)
    go(tmp_path / "whole")
    whole = outcome(tmp_path / "whole")
    assert {"model/model.safetensors", "models/ears/model.safetensors", "state.safetensors"} <= whole.keys()
    go(tmp_path / "begun", BEGUN)
    names = operations(shutil.copytree(tmp_path / "begun", tmp_path / "count"), go)
    for at, name in enumerate(names, 1):
        if name == "sync":
            continue  # nothing changes
        path = shutil.copytree(tmp_path / "begun", tmp_path / str(at))
        assert killed(path, at, torn=True, run=go)
        assert not any(map(checkpoints.verify, checkpoints.steps(path / "checkpoints")))
        go(path)
        assert outcome(path) == whole, f"killed at operation {at}, {name}"
        shutil.rmtree(path)
