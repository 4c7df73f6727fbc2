"""Run folders: one run each, one process each, nothing overwritten, nothing secret."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from toyloop import METHOD, ToyLoop, go, open_folder

from etude.core.errors import CheckpointError, RunFolderError
from etude.runtime import environment, lock
from etude.runtime.folder import RunFolder, default_name

CONFIG = {"seed": 3, "task": "toy", "model": "tiny", "steps": 5}


def test_create_writes_everything_down(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "a" / "run", METHOD, CONFIG) as folder:
        assert folder.method_json == METHOD and folder.config == CONFIG
        assert (folder.step, folder.finished, folder.checkpoint, folder.notes) == (0, False, None, [])
        assert folder.resume_command == f"etude train --resume {tmp_path / 'a' / 'run'}"
    names = {p.name for p in (tmp_path / "a" / "run").iterdir()}
    assert names == {"method.json", "config.json", "environment.json", "metrics.jsonl", "episodes.jsonl",
                     "checkpoints", "run.lock"}  # fmt: skip
    recorded = json.loads((tmp_path / "a" / "run" / "environment.json").read_text())
    assert recorded["seed"] == 3
    assert recorded["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert recorded["threads"] == torch.get_num_threads()


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    go(tmp_path / "run")
    with RunFolder.resume(tmp_path / "run"):
        with pytest.raises(RunFolderError, match=rf"run is in use by process {os.getpid()} on {os.uname().nodename}\."):
            RunFolder.resume(tmp_path / "run")
        with pytest.raises(RunFolderError, match="in use"):
            RunFolder.create(tmp_path / "run", METHOD, CONFIG)
    RunFolder.resume(tmp_path / "run").close()


@pytest.mark.slow
def test_kill_9_frees_the_lock_even_while_a_worker_lives_on(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            held = open_folder(tmp_path / "run")
            worker = os.fork()
            if worker == 0:
                time.sleep(60)
                os._exit(0)
            os.write(writer, f"{worker}\n".encode())
            time.sleep(60)
            held.close()
        finally:
            os._exit(1)
    os.close(writer)  # so that a child which fails is not waited for
    worker = int(os.read(reader, 20))
    os.close(reader)
    try:
        with pytest.raises(RunFolderError, match=f"in use by process {child} on"):
            RunFolder.create(tmp_path / "run", METHOD, CONFIG)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.kill(worker, 0)  # the worker is still there
        go(tmp_path / "run")
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_lock_of_another_host_counts_while_its_heart_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.lock"
    path.write_text('{"pid": 7, "host": "elsewhere"}')
    for _ in range(2):  # asking does not keep the lock alive
        os.utime(path, (time.time() - 50,) * 2)
        with pytest.raises(RunFolderError, match="process 7 on elsewhere"):
            lock.RunLock(tmp_path)
        assert time.time() - path.stat().st_mtime > 45
    os.utime(path, (time.time() - 70,) * 2)
    held = lock.RunLock(tmp_path)
    monkeypatch.setattr(lock, "BEAT", 0.0)
    os.utime(path, (0, 0))
    held.beat()
    assert time.time() - path.stat().st_mtime < 10
    held.release()
    held.release()
    assert path.read_text() == ""  # who lets go leaves no trace: another host may start at once


def test_a_disk_without_locks_has_the_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    held = lock.RunLock(tmp_path)
    with pytest.raises(RunFolderError, match=f"process {os.getpid()} on"):
        lock.RunLock(tmp_path)
    held.release()
    lock.RunLock(tmp_path).release()


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    go(tmp_path / "run")
    with pytest.raises(
        RunFolderError, match=r"holds a finished run\. Go on with it \(etude train --resume .*/run\), or"
    ):
        RunFolder.create(tmp_path / "run", METHOD, CONFIG)
    (tmp_path / "run" / "FINISHED").unlink()
    with pytest.raises(RunFolderError, match="holds a started run"):
        RunFolder.create(tmp_path / "run", METHOD, CONFIG)
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 2


def test_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(RunFolderError, match=r"is not empty and is not a run \(it holds thesis.tex\)"):
        RunFolder.create(tmp_path, METHOD, CONFIG)
    with pytest.raises(RunFolderError, match=r"is not a run: it has no method.json"):
        RunFolder.resume(tmp_path)
    with pytest.raises(RunFolderError, match="There is no run folder"):
        RunFolder.resume(tmp_path / "missing")
    with pytest.raises(RunFolderError, match="is a file; a run needs a folder"):
        RunFolder.create(tmp_path / "thesis.tex", METHOD, CONFIG)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "empty").mkdir()
    RunFolder.create(tmp_path / "empty", METHOD, CONFIG).close()


def test_a_run_that_never_started(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", METHOD, CONFIG).close()
    with pytest.raises(RunFolderError, match=r"was stopped before its first checkpoint.* Start it again"):
        RunFolder.resume(tmp_path / "run")
    RunFolder.create(tmp_path / "run", METHOD, {**CONFIG, "seed": 4}).close()


def test_lost_checkpoints_are_an_error_not_a_new_start(tmp_path: Path) -> None:
    go(tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").glob("step-*/COMPLETE"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"No checkpoint in .* is whole"):
        RunFolder.resume(tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.rename(tmp_path / path.name)
    for refuse in (RunFolder.resume, lambda p: RunFolder.create(p, METHOD, CONFIG)):
        with pytest.raises((CheckpointError, RunFolderError), match=r"There is no checkpoint|holds a finished run"):
            refuse(tmp_path / "run")


def test_refuse_if_changed_names_every_path(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", METHOD, CONFIG) as folder:
        folder.refuse_if_changed(METHOD, {"task": "toy", "model": "tiny"})
        other = {"id": "toy", "optimizer": {"part": "sgd", "lr": 0.2}, "filters": [{"part": "informative"}]}
        with pytest.raises(CheckpointError) as error:
            folder.refuse_if_changed(other, {"model": "large", "task": "toy"})
        assert (
            "belong to another run: method.optimizer.lr was 0.1 and is 0.2 now; "
            "method.filters was nothing and is [informative] now; model was tiny and is large now." in str(error.value)
        )
        folder.change_config(steps=9)
        assert folder.config == {**CONFIG, "steps": 9}


def test_another_version_of_etude_is_refused_another_torch_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(tmp_path / "run")
    path = tmp_path / "run" / "environment.json"
    recorded = json.loads(path.read_text())
    recorded["versions"]["torch"], recorded["threads"] = "1.0", 99
    path.write_text(json.dumps(recorded))
    with RunFolder.resume(tmp_path / "run") as folder:
        assert len(folder.notes) == 2
        assert folder.notes[0].startswith("Since this run started, torch changed from 1.0 to 2")
        assert folder.notes[1].startswith("Since this run started, threads changed from 99 to ")
    recorded["versions"]["etude"] = "0.0.1"
    path.write_text(json.dumps(recorded))
    with pytest.raises(CheckpointError, match=r"was written by etude 0.0.1, and this is etude .*etude==0.0.1"):
        RunFolder.resume(tmp_path / "run")


def test_default_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where no run has that name yet
    assert default_name("grpo", "compose", 0) == Path("runs/grpo-compose-0")
    (tmp_path / "grpo-compose-0").mkdir()
    (tmp_path / "grpo-compose-0-2").mkdir()
    assert default_name("grpo", "compose", 0, tmp_path) == tmp_path / "grpo-compose-0-3"
    assert default_name("iql", "HalfCheetah-v5", 1, tmp_path).name == "iql-HalfCheetah-v5-1"
    assert default_name("mine.py:dapo", "data/my tasks.jsonl", 2, tmp_path).name == "mine.py-dapo-my-tasks-2"


def test_no_secret_reaches_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD", "HOME"):
        monkeypatch.setenv(name, f"secret-{name}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config = {**CONFIG, "judge": {"api-key": "secret-judge", "max_tokens": 7}, "hf_token": "secret-hf", "password": ""}
    with RunFolder.create(tmp_path / "run", METHOD, config) as folder:
        stored = folder.config
    assert stored["judge"] == {"api-key": environment.MASK, "max_tokens": 7}
    assert (stored["hf_token"], stored["password"]) == (environment.MASK, "")
    go(tmp_path / "run", loop=ToyLoop())
    for path in (tmp_path / "run").rglob("*"):
        assert path.is_dir() or b"secret-" not in path.read_bytes(), path
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["variables"]["OMP_NUM_THREADS"] == "1"


def test_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment.commit(tmp_path) is None
    git = f"git -C {tmp_path} -c user.name=a -c user.email=a@b"
    steps = ("init -q", "add f", "commit -qm one", "tag v1")
    (tmp_path / "f").touch()
    assert all(os.system(f"{git} {step}") == 0 for step in steps)
    clean = environment.commit(tmp_path)
    assert clean is not None and len(clean) == 40
    (tmp_path / "f").write_text("changed")
    assert environment.commit(tmp_path) == f"{clean}-dirty"
