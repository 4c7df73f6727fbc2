"""Runs of a size: its start is looked at, the baseline's rate chosen, every case trained; what is there stays."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from etude.core.errors import ConfigError
from etude.runs.arms import state
from etude.runs.beds import Bed, runs_of, start_of
from etude.runs.code import text_hash
from etude.runs.contest import Arm, compete
from etude.runs.jobs import run_jobs
from etude.runs.tuning import combinations, sweep_jobs, swept
from etude.runtime import disk
from sizes.cases import RATE, STARTS, Case, Size, arms, parameters

ABOUT = "size.json"


def measure(
    size: Size, cases: Sequence[Case], out: Path, *, seeds: int, root: Path, workers: int | None = None
) -> None:
    """Train what is missing of a size, and write a line for each run below `out`.

    The weights of finished runs are removed, and their measurements kept: at 12 million parameters they would be 150
    megabytes of each.

    Raises: ConfigError for a start that is not like the others, and as `contest.compete`.
    """
    about = settled(size, out / size.name / ABOUT, root, workers)
    for level, bed in size.beds.items():
        told = replace(bed, set={**bed.set, RATE: about["rate"]}, sweep={})
        for arm in arms(level, cases, about["rate"]):
            print(f"{size.name}, {level}: {arm.label}", file=sys.stderr, flush=True)
            compete(told, [arm], out / size.name / f"{level}.jsonl", seeds=seeds, root=root, workers=workers)
            for name in {bed.baseline, arm.label}:
                changes = arm.changes if name == arm.label else {}
                method = arm.method if name == arm.label else bed.baseline
                slim(told, Arm(label=name, method=method, changes=changes), seeds, root)


def settled(size: Size, path: Path, root: Path, workers: int | None) -> dict[str, Any]:
    """What holds for all runs of a size: its starts, and the rate; found out if it is not written down."""
    here = {"size": size.name, "recipes": text_hash(repr(size)), "state": state()}
    if path.is_file():
        there = json.loads(path.read_text(encoding="utf-8"))
        if other := ", ".join(key for key in here if there[key] != here[key]):
            raise ConfigError(
                f"{path.parent} holds runs of another {other} (code, versions of libraries or processor count as the "
                "state), which cannot be paired with runs made here: move it away to begin anew."
            )
        return dict(there)
    model = start_of(size.first, root)
    starts = {level: begun(size, level, bed, root) for level, bed in size.beds.items()}
    areas, rate = tuned(size.first, root, workers)
    levels = {
        level: {"bed": bed.name, "steps": bed.steps, "every": bed.test.every, "start": round(starts[level], 4)}
        for level, bed in size.beds.items()
    }
    found = {**here, "parameters": parameters(model), "levels": levels, "sweep": areas, "rate": rate}
    path.parent.mkdir(parents=True, exist_ok=True)
    disk.replace_file(path, (json.dumps(found, indent=1) + "\n").encode())
    return found


def begun(size: Size, level: str, bed: Bed, root: Path) -> float:
    """pass@1 of the start on the bed's test. Raises ConfigError if that is not like the starts of other sizes."""
    from etude.runs.evaluate import evaluate

    test = bed.test
    scores = evaluate(
        start_of(bed, root), bed.goal, k=(1,), problems=test.problems, samples=test.samples, split=bed.split
    )  # fmt: skip
    found = float(scores[bed.split]["pass@1"].value)
    low, high = STARTS[level]
    if not low <= found <= high:
        more = "Read more examples (--read-steps)" if found < low else "Read fewer examples (--read-steps)"
        raise ConfigError(
            f"The start of {size.name} gets {found:.3f} of the test of {bed.name} right, and the others between {low} "
            f"and {high}: effects from such a start say nothing about size. {more}, or at another rate (--read-rate)."
        )
    return found


def tuned(bed: Bed, root: Path, workers: int | None) -> tuple[dict[str, float], float]:
    """The mean area of the baseline at every rate of the sweep, on tuning seeds, and the best rate."""
    settings = combinations(bed.sweep)
    jobs = sweep_jobs(bed, bed.baseline, settings, bed.baseline_set, root)
    run_jobs([job for each in jobs.values() for job in each], workers)
    scores, best = swept(bed, jobs)
    for job in (job for each in jobs.values() for job in each):
        shutil.rmtree(job.folder / "checkpoints", ignore_errors=True)
    return {label: round(float(each.area.mean()), 4) for label, each in scores.items()}, float(settings[best][RATE])


def slim(bed: Bed, arm: Arm, seeds: int, root: Path) -> None:
    """Remove the weights of finished runs; a run that failed keeps what it has."""
    for job in runs_of(bed, arm.method, seeds, arm.changes, root=root):
        if job.finished:
            shutil.rmtree(job.folder / "checkpoints", ignore_errors=True)
