"""A run that learns from a replay, killed at any change that it makes to the disk, ends as the run never stopped."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_runtime_kill import half, intercept, killed, operations
from toyloop import open_folder

from etude.core.edit import set_values
from etude.core.errors import RunFolderError
from etude.core.population import Member
from etude.experience import images, store
from etude.experience.prioritized import PrioritizedRows
from etude.loops.off_policy import OffPolicyLoop
from etude.runtime import checkpoints, disk, environment, round_trip
from etude.runtime.progress import Progress
from etude.runtime.run import Run
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.logged import LoggedTask
from log_toys import logged_task, small_logged, small_onward
from replay_toys import REPLAY, small
from spot_toys import SIDE, SpotTask, seeing

pytestmark = pytest.mark.usefixtures("one_thread", "still_clock")
BEGUN, STEPS = 2, 3


def loop() -> OffPolicyLoop:
    """A ring of 20 rows in five files, which is full when it is killed first; an update for every six rows."""
    method = small(REPLAY["dqn"], capacity=20, every=6, updates=1 / 6)
    method = method.replace(sampling=PrioritizedRows(batch=6, horizon=method.sampling.horizon))
    return OffPolicyLoop(method, cartpole, [Member(3), Member(4)], STEPS, block=12)


def seeing_loop() -> OffPolicyLoop:
    """The same rhythm with images, of which a frame is stored once: stacks of three, in two environments."""
    method = seeing(3, capacity=20, every=6, updates=1 / 6, environments=2)
    return OffPolicyLoop(method, SpotTask(), [Member(3), Member(4)], STEPS, block=12)


ONWARD_STEPS = 4
"""Two of them on logs, two in the environment."""


def on_logs(task: LoggedTask) -> OffPolicyLoop:
    """Nobody acts, and a transform of the logs is a part of the policy."""
    return OffPolicyLoop(small_logged("td3-bc"), task, [Member(3), Member(4)], STEPS, block=12)


def onward(name: str, task: LoggedTask) -> OffPolicyLoop:
    """From logs to the environment in the middle: 10 steps are acted before the first update, and 14 in all."""
    method = set_values(small_onward(name), {"critic.count": 2})
    return OffPolicyLoop(method, task, [Member(3), Member(4)], ONWARD_STEPS, block=7)


def go(path: Path, steps: int = STEPS, made: Callable[[], OffPolicyLoop] = loop) -> Any:
    with open_folder(path) as folder:
        progress = Progress(steps, quiet=True)
        return Run(folder, made(), steps, checkpoint_every=1, keep=1, progress=progress).execute()


def outcome(path: Path) -> dict[str, Any]:
    """The newest checkpoint and the logs, byte by byte; times that the loop takes left out."""
    last = checkpoints.steps(path / "checkpoints")[-1]
    files = (f for f in last.rglob("*.*") if f.name != "run.json")
    found: dict[str, Any] = {str(f.relative_to(last)): f.read_bytes() for f in files}
    lines = [json.loads(x) for x in (path / "metrics.jsonl").read_text().splitlines()]
    return found | {"metrics": [{k: v for k, v in x.items() if "second" not in k} for x in lines]}


@pytest.fixture
def only_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run's changes to the disk those that are its own, and no question to the system that takes long."""
    recorded = environment.record(0)
    monkeypatch.setattr(environment, "record", lambda seed: recorded)
    monkeypatch.setattr(round_trip, "room", lambda *_: False)  # what is written to look at a checkpoint is not counted


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_its_own: None) -> dict[str, Any]:
    """The outcome of the run never stopped; a file has four rows of both members."""
    monkeypatch.setattr(store, "STRETCH", 4 * 2 * (4 + 1 + 4 + 3) * 4)
    go(tmp_path / "whole")
    return outcome(tmp_path / "whole")


@pytest.mark.slow
def test_a_checkpoint_has_what_is_stored_and_how_it_surprised(tmp_path: Path, whole: dict[str, Any]) -> None:
    assert len([name for name in whole if name.startswith("replay/")]) == 5
    made, again = loop(), loop()
    for _ in range(STEPS):
        made.step()
    again.load(checkpoints.steps(tmp_path / "whole" / "checkpoints")[-1])
    assert made.updater.updates == 4 and made.collector.store.pushed == 36
    assert torch.equal(again.collector.store.grid, made.collector.store.grid)
    masses = again.method.sampling.state["masses"]
    assert torch.equal(masses, made.method.sampling.state["masses"]) and len(masses.unique()) > 9


def assert_every_kill_is_survived(tmp_path: Path, whole: dict[str, Any], run: Any, names: list[str]) -> None:
    """Whichever of these operations, of going on from `begun`, it is killed in."""
    for at, name in enumerate(names, 1):
        if name == "sync":
            continue  # nothing changes
        path = shutil.copytree(tmp_path / "begun", tmp_path / str(at))
        assert killed(path, at, torn=True, run=run)
        assert not any(map(checkpoints.verify, checkpoints.steps(path / "checkpoints")))
        run(path)
        assert outcome(path) == whole, f"killed at operation {at}, {name}"
        shutil.rmtree(path)


@pytest.mark.slow
def test_killed_at_every_write_with_what_is_stored(tmp_path: Path, whole: dict[str, Any]) -> None:
    """From where the ring is full, and in the middle of a stretch of random numbers."""
    go(tmp_path / "begun", BEGUN)
    names = operations(shutil.copytree(tmp_path / "begun", tmp_path / "count"), go)
    assert names.count("link") == 2 and names.count("write_tensors") == 5
    assert_every_kill_is_survived(tmp_path, whole, go, names)


@pytest.mark.slow
@pytest.mark.usefixtures("only_its_own")
def test_killed_at_every_write_while_it_learns_from_logs(tmp_path: Path) -> None:
    """Nothing is stored, so a checkpoint has no file of rows."""
    run = partial(go, made=partial(on_logs, logged_task(tmp_path)))
    run(tmp_path / "whole")
    whole = outcome(tmp_path / "whole")
    assert not [name for name in whole if name.startswith("replay/")] and whole["metrics"][-1]["updates"] == 36
    run(tmp_path / "begun", BEGUN)
    names = operations(shutil.copytree(tmp_path / "begun", tmp_path / "count"), run)
    assert names.count("write_tensors") > 1
    assert_every_kill_is_survived(tmp_path, whole, run, names)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wsrl", "cal-ql-online"])
@pytest.mark.usefixtures("only_its_own")
def test_killed_at_every_write_around_the_handover(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the step before it to the end: of logs alone, exactly at it, and with steps of its own in the ring."""
    monkeypatch.setattr(store, "STRETCH", 7 * 2 * (3 + 1 + 3 + 3) * 4)  # a file has seven rows of both members
    run = partial(go, steps=ONWARD_STEPS, made=partial(onward, name, logged_task(tmp_path)))
    run(tmp_path / "whole")
    whole = outcome(tmp_path / "whole")
    assert len([file for file in whole if file.startswith("replay/")]) == 2
    acted, updates = ([line.get(key) for line in whole["metrics"]] for key in ("environment_steps", "updates"))
    assert acted == [None, None, 7, 14] and updates[:3] == [7, 14, 14] and updates[3] > 14
    run(tmp_path / "begun", steps=1)
    names = operations(shutil.copytree(tmp_path / "begun", tmp_path / "count"), run)
    assert (names.count("link"), names.count("rename"), names.count("write_tensors")) == (1, 7, 8)
    assert_every_kill_is_survived(tmp_path, whole, run, names)


@pytest.mark.slow
@pytest.mark.usefixtures("only_its_own")
def test_killed_at_every_write_with_images_that_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of rows, those before the oldest and after the newest, and the true last ones of episodes."""
    run = partial(go, made=seeing_loop)
    monkeypatch.setattr(store, "STRETCH", 4 * 2 * (SIDE**2 + 5 * 4) // images.FILE)
    run(tmp_path / "whole")
    whole = outcome(tmp_path / "whole")
    files = {name for name in whole if name.startswith("replay/")}
    assert len(files) == 6 and f"replay/{images.EDGE}" in files
    made = seeing_loop()
    for _ in range(STEPS):
        made.step()
    ended = [int((own != images.NONE).sum()) for own in made.collector.store.last]  # type: ignore[attr-defined]
    assert min(ended) > 1 and made.collector.store.pushed == 36 and made.updater.updates == 4
    run(tmp_path / "begun", BEGUN)
    names = operations(shutil.copytree(tmp_path / "begun", tmp_path / "count"), run)
    assert names.count("link") == 2 and names.count("write_tensors") == 6
    assert_every_kill_is_survived(tmp_path, whole, run, names)


@pytest.mark.slow
def test_a_full_disk_leaves_the_run_safe(tmp_path: Path, whole: dict[str, Any]) -> None:
    """Full at each of the five tensor files of a checkpoint, files of the ring among them."""
    go(tmp_path / "begun", BEGUN)
    for at in range(1, 6):
        path, count = shutil.copytree(tmp_path / "begun", tmp_path / str(at)), 0

        def fill(name: str, real: Any, args: tuple[Any, ...], at: int = at) -> None:
            nonlocal count
            count += name == "write_tensors"
            if count >= at and name in ("write", "write_tensors", "link"):
                half(name, real, args)
                raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            intercept(lambda name, operation, patch=patch: patch.setattr(disk, name, operation), fill)  # type: ignore[misc]
            with pytest.raises(RunFolderError, match=r"Disk full: free some space first\. The run is safe at step 2 "):
                go(path)
        assert [p.name for p in (path / "checkpoints").iterdir()] == ["step-2"]
        go(path)
        assert outcome(path) == whole
