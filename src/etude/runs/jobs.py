"""Runs to be had: what trains each, where it is kept, and workers that do those that are missing."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from etude.core.errors import EtudeError
from etude.runtime import disk
from etude.runtime.interrupts import Interrupted

POLL = 0.2
DEFAULT = "tiny"
"""The model where no other is named, which means nothing in control."""


@dataclass(frozen=True)
class Job:
    """One run to be had: an arm ('grpo+kl-to-reference') with one seed, or with all of them if they train together.

    Args:
        rewards: functions that score, with weights where they have any.
        members: seeds of a population, from `seed` on; 0 for a run of language.
        flags: further options of `etude train`, as on the command line.
        preset: the fingerprint of the preset that it begins with; without any it has the published settings.
    """

    arm: str
    task: str
    model: str
    seed: int
    steps: int
    fields: tuple[str, ...]
    folder: Path
    rewards: tuple[str, ...] = ()
    members: int = 0
    flags: tuple[str, ...] = ()
    preset: str = ""

    def command(self) -> list[str]:
        """What `etude` is told, so that it trains this on one thread."""
        if any((self.folder / "checkpoints").glob("step-*")):
            return ["train", "--resume", str(self.folder), "--quiet"]
        name, *parts = self.arm.split("+")
        extra = [x for p in parts for x in ("--with", p)] + [x for f in self.fields for x in ("--set", f)]
        extra += [x for r in self.rewards for x in ("--reward", r)]
        extra += ["--seeds", str(self.members)] if self.members else []
        extra += ["--model", self.model] if not self.members or self.model != DEFAULT else []
        extra += [] if self.preset else ["--no-preset"]
        return [
            "train", name, "--task", self.task, "--seed", str(self.seed), "--steps", str(self.steps), "--out",
            str(self.folder), "--threads", "1", "--quiet", *extra, *self.flags,
        ]  # fmt: skip

    @property
    def finished(self) -> bool:
        """Whether the run is there, with this many steps."""
        evaluated = ("--evaluate", "0") not in zip(self.flags, self.flags[1:])
        needed = ["FINISHED", "config.json", *(["evaluation.json"] if evaluated else [])]
        there = all((self.folder / name).is_file() for name in needed)
        return there and json.loads((self.folder / "config.json").read_text())["steps"] == self.steps

    @property
    def target(self) -> int:
        """Steps that are to be had."""
        return self.steps

    @property
    def done_steps(self) -> int:
        """Steps so far, for the progress bar."""
        log = self.folder / "metrics.jsonl"
        if not log.is_file():
            return 0
        lines = log.read_bytes().split(b"\n")
        if not self.members or len(lines) < 2:
            return len(lines) - 1
        last = json.loads(lines[-2])
        done = last.get("environment_steps", last.get("updates", last["step"]))  # from logs the budget is of updates
        return int(min(done, self.target))


def jobs_for(
    arm: str, task: str, model: str, seeds: int, steps: int, fields: Sequence[str], root: Path, first: int = 0,
    rewards: Sequence[str] = (), together: bool = False, flags: tuple[str, ...] = (), preset: str = "",
) -> list[Job]:  # fmt: skip
    """The runs of an arm; one of all seeds if they are trained together.

    Their folders are named by all that matters, so equal runs are found again.

    What matters includes the content of all that is the user's own (files, modules that they import, data, models) and
    etude's version: after a change of one, the runs are done again.
    """
    import hashlib

    from etude.policies.loading import is_shipped, named
    from etude.rewards.several import names
    from etude.runtime import sources

    values = [part for f in fields for part in f.partition("=")[2].split(",")]
    start = "" if is_shipped(model) else named(model)
    own = sources.key([task, *names(list(rewards) or None), *values], arm.split("+"), start)
    matters = [arm, task, model, steps, list(fields), *rewards, *own, *flags, *filter(None, [preset])]
    key = hashlib.sha256(json.dumps(matters).encode()).hexdigest()[:8]
    label = "".join(c if c.isalnum() or c in "-+." else "-" for c in f"{arm}-{Path(task).stem}")
    home, last = root / f"{label}-{steps}-{key}", first + seeds - 1
    if together:
        name = f"seeds-{first}-to-{last}"
        return [Job(arm, task, model, first, steps, tuple(fields), home / name, tuple(rewards), seeds, flags, preset)]
    return [
        Job(arm, task, model, seed, steps, tuple(fields), home / f"seed-{seed}", tuple(rewards), 0, flags, preset)
        for seed in range(first, first + seeds)
    ]


def run_jobs(jobs: Sequence[Job], workers: int | Workers | None = None, quiet: bool = False) -> None:
    """Train what is missing, so many runs at a time. Raises EtudeError with the run's own sentence if one fails.

    Args:
        workers: how many, all cores by default; or those of somebody who has more jobs for them afterwards.
    """
    missing = [j for j in jobs if not j.finished]
    if not quiet:
        print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are there already.", file=sys.stderr)
    if not missing:
        return
    with _bar(sum(j.steps for j in missing), quiet) as advance:
        if isinstance(workers, Workers):
            try:
                _train(missing, workers, advance)
            except EtudeError:
                workers.finish()  # what they are at, so that nobody else is told of it
                raise
        else:
            with Workers(workers, most=len(missing)) as own:
                _train(missing, own, advance)


def run_each(jobs: Sequence[Job], pool: Workers, quiet: bool = False) -> dict[Job, str]:
    """Train what is missing, whatever becomes of the others; returns why, of those that failed."""
    missing = [j for j in jobs if not j.finished]
    if not missing:
        return {}
    with _bar(sum(j.target for j in missing), quiet) as advance:
        return {job: str(_failure(job)) for job, status in _ended(missing, pool, advance) if status}


def _train(missing: Sequence[Job], pool: Workers, advance: Callable[[int], None]) -> None:
    for job, status in _ended(missing, pool, advance):
        if status:
            raise _failure(job)


def _ended(missing: Sequence[Job], pool: Workers, advance: Callable[[int], None]) -> Iterator[tuple[Job, int]]:
    """Runs as they end, with their exit status."""
    waiting = list(missing)
    while waiting or pool.busy:
        while waiting and len(pool.busy) < pool.count:
            pool.start(waiting.pop(0))
        time.sleep(POLL)
        advance(sum(min(j.done_steps, j.target) for j in missing))
        yield from pool.done()


class Workers:
    """Processes that do one run after another; those that are still at work at the end save and stop.

    Args:
        count: at a time; all cores by default.
        most: never more than these.
    """

    def __init__(self, count: int | None = None, most: int | None = None) -> None:
        self.count = min(count or os.cpu_count() or 1, most or sys.maxsize)
        self.idle: list[Any] = []
        self.busy: dict[Job, Any] = {}
        self._before: Any = None

    def __enter__(self) -> Workers:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, _stop)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
        self._end([*self.idle, *self.busy.values()])

    def start(self, job: Job) -> None:
        """Have a run done by a process that is idle, or by a new one."""
        process = self.idle.pop() if self.idle else self._new()
        self.busy[job] = process
        disk.make_folder(job.folder.parent)
        self._tell(process, job)

    def finish(self) -> None:
        """Wait for the runs that have begun."""
        while self.busy:
            self.done()
            time.sleep(POLL)

    def done(self) -> list[tuple[Job, int]]:
        """Runs that have ended since, and their exit status; a process that died counts as a failed run."""
        found = []
        for job, process in [(job, process) for job, process in self.busy.items() if self._over(process)]:
            del self.busy[job]
            status = self._status(process, job)
            if status is None:
                self.start(job)
            else:
                found.append((job, status))
        return found

    # How a process is spoken with

    def _new(self) -> Any:
        return worker()

    def _tell(self, process: Any, job: Job) -> None:
        """Have it begin a run."""
        print(json.dumps({"arguments": job.command(), "log": str(log_of(job))}), file=process.stdin, flush=True)

    def _over(self, process: Any) -> bool:
        """Whether its run has ended, or it has itself."""
        return bool(process.stdout) and _readable(process.stdout)

    def _status(self, process: Any, job: Job) -> int | None:
        """Of a run that has ended; None for one that is to be begun again. What can do another run is idle then."""
        answer = process.stdout.readline() if process.stdout else ""
        self.idle += [process] if answer else []
        return int(answer) if answer else process.wait() or 1

    def _end(self, processes: Sequence[Any]) -> None:
        for process in processes:
            process.terminate()
        for process in processes:
            with process:  # closes its pipes and waits for it
                pass


def _stop(number: int, frame: FrameType | None) -> None:
    raise Interrupted("Stopped by SIGTERM; runs that have begun are saved. The same command goes on.", number)


def worker() -> subprocess.Popen[str]:
    """A process that does commands."""
    return subprocess.Popen(
        [sys.executable, "-m", "etude.cli.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _readable(stream: IO[str]) -> bool:
    """Whether there is a line, or the end, to be read at once."""
    return bool(select.select([stream], [], [], 0)[0])


def log_of(job: Job) -> Path:
    """Where what its command prints goes."""
    return job.folder.parent / f"{job.folder.name}.log"


def _failure(job: Job) -> EtudeError:
    tail = log_of(job).read_text(errors="replace").strip().splitlines()[-3:]
    return EtudeError(f"The run of {job.arm} with seed {job.seed} failed ({log_of(job)}): {' '.join(tail)}")


class _bar:
    """A progress bar over all runs, with the time left."""

    def __init__(self, total: int, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("training steps"), BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=Console(stderr=True), disable=quiet)
        self.task = self.progress.add_task("", total=total)

    def __enter__(self) -> Any:
        self.progress.start()
        return lambda done: self.progress.update(self.task, completed=done)

    def __exit__(self, *error: object) -> None:
        self.progress.stop()
