"""Logs whose columns lie in files: the same numbers as in memory, and none of it taken."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import processes
from etude.core.errors import ConfigError, DataError
from etude.core.population import Member
from etude.experience.logged import LoggedStore, MappedStore
from etude.experience.logs import table
from etude.experience.logs.columns import ABOUT, ColumnFiles, moments, read_converted
from etude.experience.logs.reading import open_logs
from etude.experience.logs.table import Logs, Spaces, blocks
from etude.experience.logs.writing import told_space
from etude.loops.off_policy import OffPolicyLoop
from etude.policies.control.units import Point
from etude.runs.data_convert import data_convert
from etude.tasks.control.logged import LoggedTask
from etude.tasks.control.pendulum import pendulum
from log_toys import cartpole_columns, logged_task, pendulum_columns, small_logged, written

torch.set_num_threads(1)
COLUMNS = ("observations", "actions", "rewards", "terminated", "truncated", "next_observations")


def converted(folder: Path, boxes: bool = True) -> tuple[LoggedTask, LoggedTask]:
    """A task with logs in memory, and with the same in files."""
    task = logged_task(folder, boxes)
    allow = [f"task.allow={','.join(task.allow)}"] if task.allow else []
    lines = list(data_convert([Path(task.data)], folder / "mapped", task.environment.id, allow))  # type: ignore[union-attr]
    assert len(lines) == 2 and lines[1].startswith(f"{folder / 'mapped'}: {task.logs().rows:,} steps, ")
    return task, task.replace(data=str(folder / "mapped"), allow=())


@pytest.mark.parametrize(("name", "boxes"), [("td3-bc", True), ("iql", True), ("cql-discrete", False)])
def test_what_is_learned_is_the_same(name: str, boxes: bool, tmp_path: Path) -> None:
    task, other = converted(tmp_path, boxes)
    assert other.logs().fingerprint == task.logs().fingerprint
    loops = [OffPolicyLoop(small_logged(name), one, [Member(3), Member(4)], 4, 3) for one in (task, other)]
    assert [type(x.collector.store).__name__ for x in loops] == ["LoggedStore", "MappedStore"]
    assert loops[0].collector.lines == loops[1].collector.lines  # type: ignore[union-attr]
    for one, same in ((loops[0].step(), loops[1].step()) for _ in range(4)):
        assert timeless(one.metrics) == timeless(same.metrics)
    one, same = (loop.policy_tensors() | loop.critic.state_dict() for loop in loops)
    assert one.keys() == same.keys()
    for key, value in one.items():
        assert torch.equal(value, same[key]), key


def timeless(metrics: dict[str, float]) -> dict[str, float]:
    return {k: v for k, v in metrics.items() if "second" not in k}


def test_rows_and_what_is_said_of_all_of_them_are_the_same(tmp_path: Path) -> None:
    task, other = converted(tmp_path)
    units, index = Point((-2.0,), (2.0,)), torch.tensor([[0, 5, 794], [7, 1, 199]])
    one, same = LoggedStore(task.logs(), units, 2), MappedStore(other.logs(), units, 2)
    for mine, its in zip(one.read(index), same.read(index), strict=True):  # type: ignore[call-overload]
        assert torch.equal(mine, its) and mine.dtype == its.dtype
    for what in ("rewards", "live", "ends", "largest", "size"):
        mine, its = getattr(one, what), getattr(same, what)
        assert torch.equal(mine, its) if isinstance(mine, torch.Tensor) else mine == its
    assert same.account.startswith("none of the memory: ") and f"({one.size:,} rows)" in same.account


def test_several_files_stand_one_behind_the_other(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"{n}.npz", pendulum_columns(episodes=n, seed=n)) for n in (3, 1, 2)]
    *lines, last = data_convert(paths, tmp_path / "all")
    found, apart = open_logs(tmp_path / "all"), [open_logs(path) for path in paths]
    assert len(lines) == 3 and found.episodes == 6 and f"{found.rows:,} steps" in last
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(found, name), np.concatenate([getattr(x, name) for x in apart]))
        assert isinstance(getattr(found, name), np.memmap)
    assert found.spaces.action_space.low == min(x.actions.min() for x in apart)
    assert found.spaces.said_by == "the data"


def test_what_not_all_say_is_not_kept(tmp_path: Path) -> None:
    logs = logged_task(tmp_path).logs()
    known = Logs(**{f: getattr(logs, f) for f in ("where", "spaces", *COLUMNS)}, behaviour_logp=logs.rewards)
    for parts, kept in (((known, known), True), ((known, logs), False), ((logs, known), False)):
        with ColumnFiles(tmp_path / "both") as files:
            for part in parts:
                files.append(part)
        found = read_converted(tmp_path / "both", None)
        assert (found.behaviour_logp is not None) == kept and found.rows == 2 * logs.rows


def test_a_file_that_was_changed_is_noticed(tmp_path: Path) -> None:
    _, other = converted(tmp_path)
    rewards = np.load(tmp_path / "mapped" / "rewards.npy", mmap_mode="r+")
    rewards[3] += 1.0
    rewards.flush()
    with pytest.raises(DataError, match="mapped is not as it was written: convert again"):
        open_logs(tmp_path / "mapped")
    (tmp_path / "mapped" / "rewards.npy").unlink()
    with pytest.raises(DataError, match="is not what `etude data convert` writes"):
        open_logs(tmp_path / "mapped")
    assert other.data == str(tmp_path / "mapped")


def test_logs_of_other_environments_are_refused(tmp_path: Path) -> None:
    swing, pole = written(tmp_path / "a.npz", pendulum_columns()), written(tmp_path / "b.npz", cartpole_columns())
    with pytest.raises(DataError, match=r"b\.npz has observations \[4\] .*: they are of different environments"):
        list(data_convert([swing, pole], tmp_path / "all", fields=["task.allow=constant-rewards"]))
    assert not (tmp_path / "all").exists() and not list(tmp_path.glob(".all*")), "whole or not at all"
    list(data_convert([pole], tmp_path / "pole", fields=["task.allow=constant-rewards"]))
    with pytest.raises(DataError, match=r"pole is of another environment: observations \[4\] and actions Discrete"):
        LoggedTask(data=str(tmp_path / "pole"), environment=pendulum).logs()
    rare = Spaces(Box(-9.0, 9.0, (4,)), Discrete(3), "somebody")  # of whose choices the logs have two
    assert read_converted(tmp_path / "pole", rare).spaces is rare
    with pytest.raises(DataError, match="is of another environment"):
        read_converted(tmp_path / "pole", Spaces(rare.observation_space, Discrete(1), "somebody"))
    wide = Spaces(Box(-1.0, 1.0, (3,)), Box(-9.0, 9.0, (1,)), "somebody")
    narrow = Spaces(Box(-1.0, 1.0, (3,)), Box(-0.1, 0.1, (1,)), "somebody")
    list(data_convert([swing], tmp_path / "swing"))
    assert read_converted(tmp_path / "swing", wide).spaces is wide
    for spaces in (narrow, Spaces(wide.observation_space, Discrete(3), "somebody")):
        with pytest.raises(DataError, match="is of another environment"):
            read_converted(tmp_path / "swing", spaces)


def test_nothing_else_is_written_over(tmp_path: Path) -> None:
    task, other = converted(tmp_path)
    with pytest.raises(ConfigError, match="is there and is nothing that `etude data convert` wrote"):
        list(data_convert([Path(task.data)], tmp_path))
    with pytest.raises(ConfigError, match="is what is read: give --out another name"):
        list(data_convert([Path(other.data)], Path(other.data)))
    with pytest.raises(DataError, match="was converted and says itself what its columns are"):
        open_logs(Path(other.data), episode_length=20)
    list(data_convert([Path(task.data)], Path(other.data), "pendulum"))
    assert open_logs(Path(other.data)).fingerprint == task.logs().fingerprint, "what it wrote itself is replaced"


class Killed(BaseException):
    """As if the process had ended."""


@pytest.mark.parametrize("at", range(3))
def test_a_conversion_that_is_killed_while_it_replaces_another_is_started_again(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the old folder goes aside, before the new one takes its name, and in the middle of removing the old."""
    one, other = (written(tmp_path / f"{k}.npz", pendulum_columns(episodes=2 + k)) for k in range(2))
    out = tmp_path / "mapped"
    list(data_convert([one], out))
    moved, removed, left = Path.rename, shutil.rmtree, [at]

    def rename(path: Path, target: Path) -> Path:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return moved(path, target)

    def rmtree(path: Path, **options: bool) -> None:
        if path.exists() and left[0] == 0:
            (path / ABOUT).unlink()
            raise Killed
        removed(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        patch.setattr(shutil, "rmtree", rmtree)
        with pytest.raises(Killed):
            list(data_convert([other], out))
    list(data_convert([other], out))
    assert LoggedTask(data=str(out)).logs().fingerprint == LoggedTask(data=str(other)).logs().fingerprint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0.npz", "1.npz", "mapped"]


def test_moments_of_pieces_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    column = np.random.default_rng(0).normal(3.0, 2.0, (1000, 3)).astype(np.float32)
    whole = moments(column)
    np.testing.assert_array_equal(whole, (column.astype(np.float64).mean(0), column.astype(np.float64).std(0)))
    monkeypatch.setattr("etude.experience.logs.table.BLOCK", 70)
    assert [len(x) for x in blocks(column)] == [23] * 43 + [11]
    np.testing.assert_allclose(moments(column), whole, rtol=1e-12)


def learn_beside(folder: Path, name: str, together: Barrier) -> None:
    """A run of this method from what was converted, whose steps begin when those of others do."""
    torch.set_num_threads(1)
    task = LoggedTask(data=str(folder / "mapped"), environment=pendulum)
    loop = OffPolicyLoop(small_logged(name), task, [Member(3), Member(4)], 4, 30)
    assert isinstance(loop.collector.store, MappedStore)
    for _ in range(4):
        together.wait(100)
        loop.step()
    loop.save(folder / name)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_two_runs_read_one_folder_at_the_same_time(tmp_path: Path) -> None:
    """In two processes, step by step, and then each of them alone in this one."""
    converted(tmp_path)
    names, together = ("td3-bc", "iql"), processes.CONTEXT.Barrier(2)
    for name in names:
        (tmp_path / name).mkdir()
    beside = [processes.Process(tmp_path, tmp_path / f"{n}.err", learn_beside, tmp_path, n, together) for n in names]
    assert [process.end() for process in beside] == [(0, "")] * 2
    for name in names:
        found = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        learn_beside(tmp_path, name, Barrier(1))
        assert len(found) == 3 and found == {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}


@contextmanager
def at_most(more: int) -> Iterator[None]:
    """No more than so many bytes of memory of its own than there are."""
    status = Path("/proc/self/status").read_text().splitlines()
    held = next(int(line.split()[1]) for line in status if line.startswith("VmData")) * 1024
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (held + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def sparse(folder: Path, rows: int, width: int) -> LoggedTask:
    """Logs of nothing but zeros, of which the disk holds nothing."""
    folder.mkdir()
    wide = (rows, width)
    shapes = {"observations": wide, "next_observations": wide, "actions": (rows, 1), "rewards": (rows,)}
    for name, shape in shapes.items():
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, shape)
    for name in ("terminated", "truncated"):
        ends = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", bool, (rows,))
        ends[-1] = name == "terminated"
    about = {
        "observation_space": told_space(Box(-1.0, 1.0, (width,))), "action_space": told_space(Box(-1.0, 1.0, (1,))),
        "spaces_said_by": "nobody", "rows": rows, "episodes": 1, "fingerprint": "",
    }  # fmt: skip
    (folder / ABOUT).write_text(json.dumps(about))
    with pytest.raises(DataError, match="not as it was written"):
        open_logs(folder)
    columns = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in COLUMNS}
    about["fingerprint"] = Logs(folder, Spaces(None, None, ""), **columns).fingerprint
    (folder / ABOUT).write_text(json.dumps(about))
    return LoggedTask(data=str(folder))


def learn_with_little(folder: Path) -> None:
    """Learn from logs of 200 MB within 48 MB, which a copy of their observations does not fit into."""
    table.BLOCK = 1 << 20
    task = sparse(folder / "large", 500_000, 50)
    OffPolicyLoop(small_logged("td3-bc"), logged_task(folder), [Member(3)], 1, 1).step()  # what is made once is
    with at_most(48 << 20):
        with pytest.raises((MemoryError, RuntimeError)):
            np.array(task.logs().observations)
        loop = OffPolicyLoop(small_logged("td3-bc"), task, [Member(3)], 1, 2)
        assert isinstance(loop.collector.store, MappedStore)
        loop.step()


@pytest.mark.slow
def test_more_than_there_is_memory_is_learned_from(tmp_path: Path) -> None:
    here = Path(__file__)  # in a process of its own: what one has freed is not asked of the system again
    code = f"import pathlib, {here.stem} as here; here.learn_with_little(pathlib.Path({str(tmp_path)!r}))"
    found = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parent), str(here.parents[1])])}
    done = subprocess.run([sys.executable, "-c", code], env=found, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_logs_that_do_not_fit_are_told_how_they_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Logs:
        raise MemoryError

    task = logged_task(tmp_path)
    monkeypatch.setattr("etude.tasks.control.logged.open_logs", full)
    with pytest.raises(DataError, match=r"swing.npz does not fit into memory.*etude data convert"):
        task.replace(episode_length=7).logs()
