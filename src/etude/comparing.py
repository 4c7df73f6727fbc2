"""Several methods on equal terms: train what is missing, side by side, then compare with statistics."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.edit import assignments
from etude.core.errors import ConfigError, EtudeError, UnknownNameError
from etude.core.fields import Count, check

if TYPE_CHECKING:
    from etude.core.task import Task
    from etude.evaluation.comparison import Comparison

POLL = 0.2


@dataclass(frozen=True)
class Job:
    """One run to be had: an arm ('grpo+kl-to-reference') with one seed."""

    arm: str
    task: str
    model: str
    seed: int
    steps: int
    fields: tuple[str, ...]
    folder: Path
    reward: str | None = None

    def command(self) -> list[str]:
        """What trains it, in a process of its own with one thread."""
        if any((self.folder / "checkpoints").glob("step-*")):
            return [sys.executable, "-m", "etude", "train", "--resume", str(self.folder), "--quiet"]
        name, *parts = self.arm.split("+")
        extra = [x for p in parts for x in ("--with", p)] + [x for f in self.fields for x in ("--set", f)]
        extra += ["--reward", self.reward] if self.reward else []
        return [
            sys.executable, "-m", "etude", "train", name, "--task", self.task, "--model", self.model, "--seed",
            str(self.seed), "--steps", str(self.steps), "--out", str(self.folder), "--threads", "1", "--quiet", *extra,
        ]  # fmt: skip

    @property
    def finished(self) -> bool:
        """Whether the run is there, with this many steps."""
        mark = self.folder / "FINISHED"
        return (
            mark.is_file()
            and (self.folder / "evaluation.json").is_file()
            and json.loads(mark.read_text())["step"] == self.steps
        )

    @property
    def done_steps(self) -> int:
        """Steps so far, for the progress bar."""
        log = self.folder / "metrics.jsonl"
        return log.read_bytes().count(b"\n") if log.is_file() else 0


def jobs_for(
    arm: str, task: str, model: str, seeds: int, steps: int, fields: Sequence[str], root: Path, first: int = 0,
    reward: str | None = None,
) -> list[Job]:  # fmt: skip
    """The runs of an arm. Their folders are named by all that matters, so equal runs are found again.

    What matters includes the text of the user's own files: after a change of one, its runs are done again.
    """
    import hashlib

    named = [*arm.split("+"), task, *([reward] if reward else [])]
    own = [p.read_text(errors="replace") for n in named if (p := Path(re.sub(r"(\.py):.*", r"\1", n))).is_file()]
    matters = [arm, task, model, steps, list(fields), *([reward] if reward else []), *own]
    key = hashlib.sha256(json.dumps(matters).encode()).hexdigest()[:8]
    label = "".join(c if c.isalnum() or c in "-+." else "-" for c in f"{arm}-{Path(task).stem}")
    return [
        Job(arm, task, model, seed, steps, tuple(fields), root / f"{label}-{steps}-{key}" / f"seed-{seed}", reward)
        for seed in range(first, first + seeds)
    ]


def run_jobs(jobs: Sequence[Job], workers: int | None = None, quiet: bool = False) -> None:
    """Train what is missing, `workers` runs at a time. Raises EtudeError with the run's own sentence if one fails."""
    missing = [j for j in jobs if not j.finished]
    if not quiet:
        print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are there already.", file=sys.stderr)
    if not missing:
        return
    count = workers or os.cpu_count() or 1
    with _bar(sum(j.steps for j in missing), quiet) as advance:
        waiting, running = list(missing), dict[Job, subprocess.Popen[str]]()
        try:
            while waiting or running:
                while waiting and len(running) < count:
                    job = waiting.pop(0)
                    running[job] = _start(job)
                time.sleep(POLL)
                advance(sum(min(j.done_steps, j.steps) for j in missing))
                for job in [j for j, p in running.items() if p.poll() is not None]:
                    _check(job, running.pop(job))
        finally:
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait()


def _start(job: Job) -> subprocess.Popen[str]:
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    log = (job.folder.parent / f"{job.folder.name}.log").open("w")
    with log:
        return subprocess.Popen(
            job.command(), stdout=log, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
        )


def _check(job: Job, process: subprocess.Popen[str]) -> None:
    if process.returncode:
        log = job.folder.parent / f"{job.folder.name}.log"
        tail = log.read_text(errors="replace").strip().splitlines()[-3:]
        raise EtudeError(f"The run of {job.arm} with seed {job.seed} failed ({log}): {' '.join(tail)}")


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


def final_score(folder: Path, metric: str, split: str) -> float:
    """A number from a finished run's evaluation. Raises ConfigError naming what there is."""
    after = json.loads((folder / "evaluation.json").read_text())["after"]
    if split not in after or metric not in after[split]:
        there = sorted({f"{s}: {', '.join(after[s])}" for s in after})
        raise ConfigError(f"The evaluation in {folder} has no {metric} on {split}; it has {'; '.join(there)}.")
    return float(after[split][metric]["value"])


def curve(folder: Path, metric: str = "reward") -> list[float]:
    """A metric over the steps of a run; nan where a step has none."""
    from etude.runtime.jsonl import JsonLines

    values = [line.get(metric) for line in JsonLines.read(folder / "metrics.jsonl")]
    return [math.nan if v is None else float(v) for v in values]


def _check_arms(
    methods: Sequence[str], task: str, fields: Sequence[str], reward: str | None, metric: str, split: str
) -> Task:
    """The task, if all of the methods can be trained on it and compared by this metric."""
    from etude.evaluation.language import evaluation_splits
    from etude.training import check_fit, compose_method, compose_task, kind_of
    from etude.training_language import KS

    if isinstance(methods, str) or len(methods) < 2:
        raise ConfigError("Comparing takes at least two methods, as in: etude compare grpo dr-grpo --task compose.")
    if len(dict.fromkeys(methods)) < len(methods):
        raise ConfigError(f"A method can be compared only with others; {', '.join(methods)} has one twice.")
    goal = compose_task(task, [f for f in fields if f.startswith("task.")], reward)
    for arm in methods:
        name, *parts = arm.split("+")
        method = compose_method(name, [f for f in fields if not f.startswith("task.")], parts, reward)
        check_fit(method, goal)
        if method.objective is not None and not method.objective.generates:
            raise ConfigError(f"{arm} trains a scorer, which samples nothing, so it has no {metric} to compare.")
    kind_of(goal).prepare(method, goal)
    known = [*(f"pass@{k}" for k in KS), "reward"]
    if metric not in known:
        raise UnknownNameError("metric after training", metric, known, f"There are: {', '.join(known)}.")
    splits = evaluation_splits(goal)  # type: ignore[arg-type]
    if split not in splits:
        raise UnknownNameError("evaluated split", split, splits, f"There are: {', '.join(splits)}.")
    return goal


def _samples(arm: str) -> bool:
    """Whether the method samples while it trains, so that its rewards make a learning curve."""
    from etude.core.registry import get_method

    experience = get_method(arm.split("+")[0]).experience
    return experience is not None and experience.samples


@dataclass
class Compared:
    """The comparison, and the files that show it."""

    comparison: Comparison
    folder: Path
    files: list[Path]
    notes: list[str]


def compare(
    methods: Sequence[str], task: str = "compose", *, model: str = "tiny", seeds: int = 3, steps: int = 100,
    metric: str = "pass@1", split: str = "test", out: Path | str = "runs",
    set: str | Sequence[str] | Mapping[str, Any] = (), reward: str | None = None, workers: int | None = None,
    quiet: bool = False,
) -> Compared:  # fmt: skip
    """Train what is missing, then compare the methods' final scores and learning curves.

    Args:
        methods: names; parts stack with +, as in 'grpo+kl-to-reference'. The first is the baseline.
        metric, split: what is compared, from the evaluation after training.
        reward: the function that scores, for all of them: 'file.py:function' or 'module:function'.

    Raises: ConfigError for fewer than two methods or an unknown name, before anything is trained.
    """
    from etude.evaluation.comparison import compare_arms

    fields = assignments(set)
    for name, number in {"seeds": seeds, "steps": steps, "workers": 1 if workers is None else workers}.items():
        check(name, Count, number)
    goal = _check_arms(methods, task, fields, reward, metric, split)
    arms = {arm: jobs_for(arm, task, model, seeds, steps, fields, Path(out), reward=reward) for arm in methods}
    run_jobs([j for jobs in arms.values() for j in jobs], workers, quiet)
    scores = {arm: {goal.id: [final_score(j.folder, metric, split) for j in jobs]} for arm, jobs in arms.items()}
    curves = {arm: {goal.id: [curve(j.folder) for j in jobs]} for arm, jobs in arms.items() if _samples(arm)}
    found = compare_arms(scores, curves, list(range(1, steps + 1)), metric=f"{metric} ({split})")
    folder = Path(out) / (
        "compare-" + "-vs-".join(a.replace("+", "_").replace("/", "-") for a in methods) + f"-{goal.id}"
    )
    written = found.write(folder)
    return Compared(found, folder, list(written.files), list(written.notes))
