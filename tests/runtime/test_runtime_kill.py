"""A run killed at any change it makes to the disk, and resumed, ends exactly as the run never stopped."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from toyloop import ToyLoop, go, outcome

import processes
from etude.core.errors import RunFolderError
from etude.runtime import checkpoints, disk, environment
from etude.runtime.folder import RunFolder
from etude.runtime.jsonl import JsonLines
from etude.runtime.looks import Look
from etude.runtime.run import RunResult

HALVES = ("write", "write_tensors", "remove")
"""Operations that a kill can leave half done; the others happen or do not."""
OPERATIONS = ("write", "write_tensors", "sync", "rename", "link", "make_folder", "cut", "remove")


def intercept(patch: Callable[[str, Any], None], before: Callable[[str, Any, tuple[Any, ...]], None]) -> None:
    """Call `before(name, real, arguments)` ahead of every change to the disk; leave the slow fsync out."""
    for name in OPERATIONS:
        real = getattr(disk, name)

        def operation(*args: Any, name: str = name, real: Any = real) -> None:
            before(name, real, args)
            if name != "sync":
                real(*args)

        patch(name, operation)


def half(name: str, real: Any, args: tuple[Any, ...]) -> None:
    """Leave an operation in the middle, where it has one."""
    if name == "write":
        os.write(args[0], args[1][: len(args[1]) // 2])
    elif name == "write_tensors":
        real(*args)
        os.truncate(args[0], args[0].stat().st_size // 2)
    elif name == "remove" and args[0].is_dir():
        next(p for p in args[0].rglob("*") if p.is_file()).unlink()


When = Callable[[str, tuple[Any, ...]], bool]
"""Whether to kill ahead of this change to the disk: its name and arguments."""


def killed(path: Path, at: int | When, torn: bool, run: Callable[[Path], Any] = go) -> bool:
    """Run in a child that dies, as by kill -9, at its `at`-th change to the disk. False if it got to the end."""
    child = os.fork()
    if child == 0:
        count = 0

        def die(name: str, real: Any, args: tuple[Any, ...]) -> None:
            nonlocal count
            count += 1
            if at(name, args) if callable(at) else count == at:
                if torn:
                    half(name, real, args)
                os._exit(9)

        try:
            intercept(lambda name, operation: setattr(disk, name, operation), die)
            run(path)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


def operations(path: Path, run: Callable[[Path], Any] = go) -> list[str]:
    """The changes to the disk that a whole run makes."""
    names: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        intercept(lambda name, operation: patch.setattr(disk, name, operation), lambda name, *_: names.append(name))
        run(path)
    return names


@pytest.fixture
def reference(tmp_path: Path, still_clock: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    recorded = environment.record(0)  # asks git and the system, which takes longer than the run
    monkeypatch.setattr(environment, "record", lambda seed: recorded)
    go(tmp_path / "reference")
    return outcome(tmp_path / "reference")


def begun(folder: Path, run: Callable[[Path], Any] = go) -> dict[str, bytes]:
    """The outcome of a run never stopped, in a process that is there for a test alone: clock and disk stand still."""
    torch.set_num_threads(1)
    recorded = environment.record(0)
    patch = pytest.MonkeyPatch()
    patch.setattr(environment, "record", lambda seed: recorded)
    patch.setattr("etude.runtime.run.monotonic", lambda: 1000.0)
    patch.setattr(os, "fsync", lambda fd: None)
    run(folder / "reference")
    return outcome(folder / "reference")


def changes(names: list[str]) -> list[tuple[int, str]]:
    """Where to kill: ahead of what is only waited for nothing is other than ahead of what comes next."""
    return [(at, name) for at, name in enumerate(names, 1) if name != "sync"]


@pytest.mark.slow
def test_killed_at_every_write(tmp_path: Path) -> None:
    processes.lean(tmp_path, kill_at_every_write, tmp_path)


def kill_at_every_write(folder: Path) -> None:
    reference, names = begun(folder), operations(folder / "count")
    assert len(names) > 80
    kills = [(at, True) for at, _ in changes(names)] + [(at, False) for at, name in changes(names) if name in HALVES]
    for at, torn in kills:
        path = folder / f"{at}-{torn}"
        assert killed(path, at, torn)
        assert not any(map(checkpoints.verify, checkpoints.steps(path / "checkpoints")))  # none is ever half there
        go(path)
        assert outcome(path) == reference, f"killed at operation {at}, {names[at - 1]}"
        shutil.rmtree(path)


SCORES = {1: 0.1, 2: 0.6, 3: 0.2, 4: 0.6, 5: 0.3}


def with_best(path: Path) -> RunResult:
    """A run that keeps its newest checkpoint and the best, of step 2."""
    loop = ToyLoop()
    looks = {"look": lambda: Look({"test": {"score": SCORES[loop.finished]}}), "look_every": 1}
    return go(path, every=3, loop=loop, keep=1, keep_best="test/score", **looks)


@pytest.mark.slow
def test_the_best_stays_wherever_it_is_killed(tmp_path: Path) -> None:
    processes.lean(tmp_path, kill_beside_the_best, tmp_path)


def kill_beside_the_best(folder: Path) -> None:
    reference, names = begun(folder, with_best), operations(folder / "count", with_best)
    for at, name in changes(names):
        path = folder / str(at)
        assert killed(path, at, torn=True, run=with_best)
        root = path / "checkpoints"
        there = {checkpoints.step_of(p) for p in checkpoints.steps(root)}
        assert not any(map(checkpoints.verify, checkpoints.steps(root)))
        assert 2 in there or not there & {3, 4, 5}, "once it was found, it is there"
        with_best(path)
        assert outcome(path) == reference, f"killed at operation {at}, {name}"
        assert {2, 5} <= {checkpoints.step_of(p) for p in checkpoints.steps(root)}
        shutil.rmtree(path)


@pytest.mark.slow
def test_killed_again_at_every_write_while_resuming(tmp_path: Path) -> None:
    processes.lean(tmp_path, kill_again, tmp_path)


def kill_again(folder: Path) -> None:
    reference = begun(folder)
    assert killed(folder / "once", len(operations(folder / "count")) * 2 // 3, torn=True)
    names = operations(shutil.copytree(folder / "once", folder / "again"))
    assert len(names) > 30
    for at, name in changes(names):
        path = shutil.copytree(folder / "once", folder / str(at))
        assert killed(path, at, torn=at % 2 == 0)
        go(path)
        assert outcome(path) == reference, f"killed at operation {at} of the resumed run, {name}"


def test_the_order_survives_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace: list[tuple[str, str]] = []

    def note(name: str, real: Any, args: tuple[Any, ...]) -> None:
        path = Path(f"/proc/self/fd/{args[0]}").readlink() if isinstance(args[0], int) else args[0]
        trace.append((name, os.path.relpath(path, tmp_path / "run")))

    intercept(lambda name, operation: monkeypatch.setattr(disk, name, operation), note)
    go(tmp_path / "run", steps=2)
    start = trace.index(("make_folder", "checkpoints/tmp-2"))
    end = trace.index(("rename", "checkpoints/tmp-2"))
    inner = trace[start:end]
    sealed = inner.index(("write", "checkpoints/tmp-2/COMPLETE"))
    for name in ("state.safetensors", "state.json", "run.json"):
        assert inner.index(("sync", f"checkpoints/tmp-2/{name}")) < sealed
    assert inner[sealed + 1 :] == [("sync", "checkpoints/tmp-2/COMPLETE"), ("sync", "checkpoints/tmp-2")]
    assert trace[end + 1] == ("sync", "checkpoints")
    last_line = max(i for i, t in enumerate(trace[:start]) if t == ("write", "metrics.jsonl"))
    assert ("sync", "metrics.jsonl") in trace[last_line:start]
    assert ("sync", "episodes.jsonl") in trace[last_line:start]
    assert trace.index(("rename", "FINISHED.tmp")) > end


@pytest.mark.slow
def test_disk_full_at_every_write(tmp_path: Path, reference: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    count, full_from = 0, 1

    def fill(name: str, real: Any, args: tuple[Any, ...]) -> None:
        nonlocal count
        count += name in ("write", "write_tensors")
        if count >= full_from and name in ("write", "write_tensors"):
            half(name, real, args)
            raise OSError(errno.ENOSPC, "No space left on device")

    def attempts() -> Iterator[Path]:
        nonlocal count, full_from
        for full_from in range(1, 1000):
            count = 0
            with pytest.MonkeyPatch.context() as patch:
                intercept(lambda name, operation: patch.setattr(disk, name, operation), fill)
                try:
                    go(tmp_path / str(full_from))
                    return
                except RunFolderError as error:
                    said = str(error)
            assert said.startswith("Disk full: ")
            if (tmp_path / str(full_from) / "checkpoints" / "step-0").exists() or "safe" in said:
                newest, damage = checkpoints.newest(tmp_path / str(full_from) / "checkpoints")
                assert f"The run is safe at step {checkpoints.step_of(newest)} ({newest})" in said
                assert not damage and not list(newest.parent.glob("tmp-*"))
            list(JsonLines.read(tmp_path / str(full_from) / "metrics.jsonl"))
            yield tmp_path / str(full_from)

    tried = 0
    for path in attempts():
        tried += 1
        for log in path.glob("*.jsonl"):
            assert log.read_bytes()[-1:] in (b"", b"\n")  # the row in flight was taken back
        go(path)
        assert outcome(path) == reference
        shutil.rmtree(path)
    assert tried > 30


def test_every_way_to_say_that_a_disk_is_full() -> None:
    assert disk.is_full(OSError(errno.ENOSPC, "voll"))
    assert disk.is_full(OSError(errno.EDQUOT, "Disk quota exceeded"))
    assert disk.is_full(RuntimeError("Io(Os { code: 28, message: No space left on device })"))
    assert not disk.is_full(OSError(errno.EACCES, "Permission denied"))


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path: Path, still_clock: None) -> None:
    disk_path = tmp_path / "disk"
    disk_path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(disk_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting needs root")
    try:
        path, size = disk_path / "run", 12_000  # about 100 kB each: the first two checkpoints fit, and not much more
        with pytest.raises(RunFolderError, match=r"Disk full: .* safe at step") as raised:
            go(path, 40, 2, ToyLoop(size=size), keep=10)
        step = int(re.findall(r"safe at step (\d+)", str(raised.value))[0])
        assert checkpoints.newest(path / "checkpoints")[0].name == f"step-{step}"
        assert 0 < step < 40
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk_path)], check=True)
        go(path, 40, 2, ToyLoop(size=size), keep=10)
        go(tmp_path / "roomy", 40, 2, ToyLoop(size=size), keep=10)
        assert outcome(path) == outcome(tmp_path / "roomy")
    finally:
        subprocess.run(["umount", str(disk_path)], check=True)


def test_resuming_twice_at_the_end_changes_nothing(tmp_path: Path, reference: dict[str, bytes]) -> None:
    result = go(tmp_path / "reference")
    assert (result.status, result.step) == ("finished", 5)
    assert outcome(tmp_path / "reference") == reference


def test_a_finished_run_can_be_made_longer(tmp_path: Path, still_clock: None) -> None:
    go(tmp_path / "short", steps=4)
    go(tmp_path / "short", steps=6)
    go(tmp_path / "long", steps=6)
    assert outcome(tmp_path / "short") == outcome(tmp_path / "long")
    with RunFolder.resume(tmp_path / "short") as folder:
        assert folder.finished
