"""A run is a folder, complete in itself: what it does, what came out, and how to go on.

`method.json`, `config.json`, `environment.json`: what the run does, and on what. `run.toml`: what does it again.
`inputs.json`, `sources/`: what it was made from (see `sources.py`). `metrics.jsonl`, `episodes.jsonl`: one line per
step, and sampled rollouts. `evaluations.jsonl`: a line for each time that the policy was evaluated while it was
trained.
`checkpoints/step-N/`: see `checkpoints.py`; there is one before the first step. `report.html` and `FINISHED`: once it
is done. `STOPPED`: why it ended before its last step, if it was asked to. `run.lock`: held while a process works in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from etude.core.errors import CheckpointError, RunFolderError
from etude.runtime import checkpoints, disk, environment
from etude.runtime.jsonl import JsonLines
from etude.runtime.lock import RunLock

LOGS = ("metrics", "episodes")
OURS = re.compile(
    r"(method|config|environment|evaluation|inputs)\.json(\.tmp)?|(metrics|episodes|evaluations)\.jsonl"
    r"|run\.toml(\.tmp)?|checkpoints|sources|run\.lock|tensorboard|wandb"
)
"""What a run that was killed before its first checkpoint may have left."""


class RunFolder:
    """A run's folder, locked while open. Made by `create` or `resume`; use as a context manager, or `close` it.

    Args:
        path: the folder.
        lock: held until closed.
        checkpoint: the checkpoint to go on from; None for a new run.
        notes: sentences for the user (a damaged checkpoint, another machine).
    """

    def __init__(self, path: Path, lock: RunLock, checkpoint: Path | None = None, notes: Sequence[str] = ()) -> None:
        self.path, self.lock, self.checkpoint, self.notes = path, lock, checkpoint, list(notes)
        self.logs: dict[str, JsonLines] = {}
        try:
            for name in LOGS:
                self.log(name)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, method_json: Mapping[str, Any], config: Mapping[str, Any]) -> RunFolder:
        """A folder for a new run, with its method, config (must hold 'seed') and environment written down.

        Raises RunFolderError if the folder is in use, holds a run already, or holds anything that is not a run.
        """
        path = Path(path)
        with disk.when_full(lambda: f"{path} could not be made; nothing was trained yet. Free some space first."):
            _make(path)
            _refuse_foreign(path)
            lock = RunLock(path)
            try:
                _refuse_started(path)
                disk.make_folder(path / "checkpoints")
                checkpoints.tidy(path / "checkpoints")
                _write_json(path / "method.json", method_json)
                _write_json(path / "config.json", environment.masked(config))
                folder = cls(path, lock)
                folder.record_environment(int(config["seed"]))
                return folder
            except BaseException:
                lock.release()
                raise

    @classmethod
    def resume(cls, path: Path) -> RunFolder:
        """The folder of a run that was stopped, at its newest checkpoint that is whole.

        Raises RunFolderError if it is no run, is in use, or was stopped before its first checkpoint;
        CheckpointError if all its checkpoints are damaged or another version of etude wrote them.
        """
        path = Path(path)
        _refuse_strange(path)
        with disk.when_full(lambda: f"{path} could not be opened; its checkpoints are untouched. Free some space."):
            lock = RunLock(path)
            try:
                _refuse_unstarted(path)
                notes = _changes_since(path)
                newest, damage = checkpoints.newest(path / "checkpoints")
                checkpoints.tidy(path / "checkpoints")
                checkpoints.set_aside(path / "checkpoints", after=checkpoints.step_of(newest))
                return cls(path, lock, newest, notes + damage)
            except BaseException:
                lock.release()
                raise

    @property
    def method_json(self) -> dict[str, Any]:
        """The method that the run was started with."""
        return dict(checkpoints.load_json(self.path / "method.json"))

    @property
    def config(self) -> dict[str, Any]:
        """What else it was started with: task, model, steps, seed, ..."""
        return dict(checkpoints.load_json(self.path / "config.json"))

    @property
    def step(self) -> int:
        """The step that the run goes on from."""
        return checkpoints.step_of(self.checkpoint) if self.checkpoint else 0

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "FINISHED").exists()

    @property
    def resume_command(self) -> str:
        """What to type to go on."""
        return f"etude train --resume {self.path}"

    def log(self, name: str) -> JsonLines:
        """The log `<name>.jsonl`; part of every checkpoint from then on, and cut back to it on resume."""
        if name not in self.logs:
            self.logs[name] = JsonLines(self.path / f"{name}.jsonl")
        return self.logs[name]

    def change_config(self, **values: object) -> None:
        """Write down values that may change on resume (the number of steps)."""
        _write_json(self.path / "config.json", environment.masked({**self.config, **values}))

    def record_environment(self, seed: int, tried: Mapping[str, Any] | None = None) -> None:
        """Write down versions, hardware and threads as they are now, and what the loop tried on this machine."""
        _write_json(self.path / "environment.json", {**environment.record(seed), **(tried or {})})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Mark the run as finished."""
        disk.replace_file(self.path / "FINISHED", json.dumps(result, indent=1).encode())

    def stop(self, why: str) -> None:
        """Note in a sentence why the run ends here for now."""
        _write_json(self.path / "STOPPED", {"why": why})

    def reopen(self) -> None:
        """Take these marks back, because the run goes on."""
        for mark in ("FINISHED", "STOPPED"):
            disk.remove(self.path / mark)

    def refuse_if_changed(self, method_json: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> None:
        """Raise CheckpointError, naming every path that differs, if the run was started with something else.

        Args:
            method_json: the method that is about to go on.
            config: the entries that must agree (task, model, seed); entries not given are not compared.
        """
        stored = self.config
        pairs = _differences(self.method_json, json.loads(json.dumps(method_json)), "method")
        for key, value in environment.masked(dict(config or {})).items():
            pairs += _differences(stored.get(key), json.loads(json.dumps(value)), key)
        if pairs:
            what = "; ".join(f"{where} was {_short(old)} and is {_short(new)} now" for where, old, new in pairs)
            raise CheckpointError(
                f"The checkpoints in {self.path} belong to another run: {what}. "
                f"Resume it as it was ({self.resume_command}), or start a new one in another folder."
            )

    def close(self) -> None:
        """Close the logs and let the folder go; may be called twice."""
        for log in self.logs.values():
            log.close()
        self.lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def default_name(method: str, task: str, seed: int, root: Path = Path("runs")) -> Path:
    """`runs/grpo-compose-0`, or `runs/grpo-compose-0-2` if there is one already; a task's file goes by its name."""
    task = Path(task).name.removesuffix(".jsonl")
    name = re.sub(r"[^A-Za-z0-9._@+]+", "-", f"{method}-{task}-{seed}").strip("-.")
    path, n = root / name, 1
    while path.exists():
        n += 1
        path = root / f"{name}-{n}"
    return path


def _make(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"{path} is a file; a run needs a folder. Choose another name.")
    disk.make_folder(path)


def _refuse_foreign(path: Path) -> None:
    """Refuse a folder that holds something else, so that nothing of it is ever touched."""
    foreign = sorted(p.name for p in path.iterdir() if not OURS.fullmatch(p.name))
    if foreign and not (path / "method.json").exists():
        raise RunFolderError(f"{path} is not empty and is not a run (it holds {foreign[0]}). Choose another name.")


def _started(path: Path) -> bool:
    """Whether the run got as far as its first checkpoint, or a line in its log."""
    left = [p for p in (path / "checkpoints").glob("*") if not p.name.startswith("tmp-")]
    return bool(left) or any(p.stat().st_size for p in path.glob("*.jsonl"))


def _refuse_started(path: Path) -> None:
    """Refuse a folder whose run got anywhere: nothing that was trained is ever overwritten."""
    finished = (path / "FINISHED").exists()
    if finished or _started(path) or not all(OURS.fullmatch(p.name) for p in path.iterdir()):
        raise RunFolderError(
            f"{path} holds a {'finished' if finished else 'started'} run. "
            f"Go on with it (etude train --resume {path}), or choose another name."
        )


def _refuse_strange(path: Path) -> None:
    """Refuse to resume what is no run."""
    if not path.is_dir():
        raise RunFolderError(f"There is no run folder {path}.")
    if not any((path / name).exists() for name in ("method.json", "run.lock")):
        raise RunFolderError(f"{path} is not a run: it has no method.json.")


def _refuse_unstarted(path: Path) -> None:
    """Refuse to resume a run that never got anywhere; `create` takes such a folder."""
    if not _started(path):
        raise RunFolderError(
            f"{path} was stopped before its first checkpoint, so there is nothing to go on from. "
            "Start it again with the command that started it."
        )


def _changes_since(path: Path) -> list[str]:
    """Sentences about what is not as it was when the run started. Raises CheckpointError for another etude."""
    before = checkpoints.load_json(path / "environment.json")
    now = environment.record(before.get("seed", 0))
    then, here = before.get("versions", {}).get("etude"), now["versions"]["etude"]
    if then != here:
        raise CheckpointError(
            f"{path} was written by etude {then}, and this is etude {here}. "
            f"Resume it with that version (pip install 'etude=={then}'), or start a new run."
        )
    return environment.changes(before, now)


def _write_json(path: Path, value: object) -> None:
    disk.replace_file(path, json.dumps(value, indent=1).encode())


def _differences(old: object, new: object, where: str) -> list[tuple[str, object, object]]:
    """Where two JSON values differ, by path."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(k for k in new if k not in old)]
        return [d for k in keys for d in _differences(old.get(k), new.get(k), f"{where}.{k}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [d for i, (a, b) in enumerate(zip(old, new)) for d in _differences(a, b, f"{where}.{i}")]
    return [] if old == new else [(where, old, new)]


def _short(value: object) -> str:
    """A JSON value in a sentence; a part by its name."""
    if isinstance(value, dict) and "part" in value:
        return str(value["part"])
    if isinstance(value, list):
        return "[" + ", ".join(_short(v) for v in value) + "]"
    return "nothing" if value is None else str(value)
