"""What finished runs on a bed came to, as pairs of the same seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from etude.core.errors import UnknownNameError
from etude.evaluation.learning import fit_curve
from etude.evaluation.pairs import Pair
from etude.runs.beds import Bed, Scores, scores_of
from etude.runs.comparing import curves
from etude.runs.jobs import Job

EVALUATED, FITTED, LOGGED = ("end", "area"), ("ceiling", "rate"), ("mean", "last")
TRACED = "frontier"
LATE = 0.25
"""The part of a run that 'last' averages."""


def pairs_of(
    bed: Bed, measures: Sequence[str], arm: Sequence[Job], baseline: Sequence[Job], own: Collection[str] = ()
) -> list[Pair]:
    """Pairs of runs with the same seeds, in order.

    Args:
        measures: names as in `Measure`: 'end', 'area:pass@8', 'rate', 'mean:loss', 'last:completion_length'; those
            of frontiers, which are of further runs, are left to `frontiers.py`.
        own: those of what the method does by itself: 0 for a baseline that logs no such metric.
    """
    names = dict.fromkeys(("end", *(name for name in measures if name.partition(":")[0] != TRACED)))
    missing = {name for name in own if _unlogged(name, baseline)}
    sides = [
        {name: measured(bed, name, arm) for name in names},
        {name: np.zeros(_seeds(baseline)) if name in missing else measured(bed, name, baseline) for name in names},
    ]
    begun = [n for n in sides[1] if n.partition(":")[0] in (*EVALUATED, *LOGGED) and n not in missing]
    start = {name: _start(bed, name, baseline) for name in begun}
    counts, weights = [budgets(jobs) for jobs in (arm, baseline)], [_weights(jobs) for jobs in (arm, baseline)]
    solved = [_solved(bed, jobs) for jobs in (arm, baseline)]
    shared = [name for name in counts[0] if name in counts[1]]
    seeds = [seed for job in arm for seed in range(job.seed, job.seed + max(job.members, 1))]
    return [
        Pair(
            seed=seed,
            arm={k: float(v[i]) for k, v in sides[0].items()}, baseline={k: float(v[i]) for k, v in sides[1].items()},
            start={k: float(v[i]) for k, v in start.items()},
            budgets={k: (float(counts[0][k][i]), float(counts[1][k][i])) for k in shared},
            weights=(weights[0][i], weights[1][i]) if weights[0] and weights[1] else (),
            solved=(solved[0][i], solved[1][i]) if solved[0] and solved[1] else (),
        )
        for i, seed in enumerate(seeds)
    ]  # fmt: skip


def measured(bed: Bed, name: str, jobs: Sequence[Job]) -> NDArray[np.float64]:
    """[seeds], a measure by its name. Raises UnknownNameError for one that is not of a bed, or that nothing logged.

    Where a run skips rows that teach nothing, NAME is what it logged as NAME/learned, of the rows that it did not skip.
    """
    how, _, metric = name.partition(":")
    if how in EVALUATED:
        return np.asarray(getattr(_scores(bed, metric, jobs), how))
    if how in FITTED:
        found = _scores(bed, metric, jobs)
        fits = [fit_curve(found.at, curve, (None, None) if metric else bed.bounds) for curve in found.curves]
        return np.array([fit.ceiling if how == "ceiling" else fit.rate for fit in fits])
    if how not in LOGGED or not metric:
        known = [*EVALUATED, *FITTED, TRACED, *(f"{h}:METRIC" for h in (*EVALUATED, *FITTED, *LOGGED))]
        raise UnknownNameError("measure on a bed", name, known, f"There are: {', '.join(known)}.")
    lines = _lines(bed, metric, jobs)
    late = [line[-max(1, round(LATE * len(line))) :] if how == "last" else line for line in lines]
    return np.array([np.nanmean(line) for line in late])


def _lines(bed: Bed, metric: str, jobs: Sequence[Job]) -> list[NDArray[np.float64]]:
    """What each seed logged along its run. Raises UnknownNameError for what the runs did not log."""
    logged = _logged(jobs[0])
    metric = next((x for x in (metric, f"{metric}/learned") if x in logged), metric)
    if metric not in logged:
        raise UnknownNameError("metric that these runs logged", metric, logged)
    points = [bed.steps * (i + 1) / POINTS for i in range(POINTS)] if bed.goal.together else range(1, bed.steps + 1)
    return [np.asarray(line, float) for line in curves(jobs, list(points), metric)]


def _unlogged(name: str, jobs: Sequence[Job]) -> bool:
    """Whether a measure is of a metric that these runs did not log."""
    how, _, metric = name.partition(":")
    return how in LOGGED and not {metric, f"{metric}/learned"} & _logged(jobs[0])


def _seeds(jobs: Sequence[Job]) -> int:
    return sum(max(job.members, 1) for job in jobs)


def _logged(job: Job) -> set[str]:
    """Names of what a run's metrics hold."""
    from etude.runtime.jsonl import JsonLines

    return {name for line in JsonLines.read(job.folder / "metrics.jsonl") for name in (*line, *line.get("members", ()))}


POINTS = 40
"""Points of the budget at which what a population logged is read."""


def _start(bed: Bed, name: str, jobs: Sequence[Job]) -> NDArray[np.float64]:
    """[seeds]: as evaluated before the first step, or as logged first, in the first step for whoever logs each."""
    how, _, metric = name.partition(":")
    if how in EVALUATED:
        return _scores(bed, metric, jobs).start
    seen = [line[np.isfinite(line)] for line in _lines(bed, metric, jobs)]
    return np.array([line[0] if len(line) else np.nan for line in seen])


def _scores(bed: Bed, metric: str, jobs: Sequence[Job]) -> Scores:
    return scores_of(bed, jobs, metric or bed.metric)


def budgets(jobs: Sequence[Job]) -> Mapping[str, list[float]]:
    """[seeds] of what the runs used, as far as they counted it: steps of the budget, updates, completions, tokens.

    Tokens are all that the policy drew, of attempts that were filtered out, second looks, forks and searches too; where
    a step drew none, those that it learned from.
    """
    from etude.runtime.jsonl import JsonLines

    counted: dict[str, list[float]] = {}
    for job in jobs:
        lines = list(JsonLines.read(job.folder / "metrics.jsonl"))
        method = json.loads((job.folder / "method.json").read_text())
        passes = float(method.get("epochs", 1)) * float(method.get("minibatches", 1))
        last = lines[-1] if lines else {"step": 0}
        found = {
            "steps": float(last.get("environment_steps", last["step"])),
            "updates": float(last["step"]) * passes,
        }
        if any("rows" in line for line in lines):
            found["completions"] = float(sum(line.get("rows", 0.0) for line in lines))
            found["tokens"] = float(sum(map(_tokens, lines)))
        for name, value in found.items():
            counted.setdefault(name, []).extend([value] * max(job.members, 1))
    return counted


def _tokens(line: Mapping[str, float]) -> float:
    """Of a step."""
    return line.get("sampled_tokens") or line.get("rows", 0.0) * line.get("completion_length", 0.0)


def _weights(jobs: Sequence[Job]) -> list[str]:
    """A hash of what each run ended with; empty where several seeds are one run."""
    if any(job.members for job in jobs):
        return []
    return [hashlib.sha256(_last(job.folder).read_bytes()).hexdigest()[:12] for job in jobs]


def _solved(bed: Bed, jobs: Sequence[Job]) -> list[list[int]]:
    """How many samples of each problem were right after training, run by run; empty in worlds without problems."""
    counts = [json.loads((j.folder / "evaluation.json").read_text())["solved"]["after"].get(bed.split) for j in jobs]
    return counts if all(counts) else []


def by_level(bed: Bed, jobs: Sequence[Job], k: int = 1) -> list[dict[str, tuple[float, float]]]:
    """Of each run pass@k before and after training, by level of the test's problems; of one the share that is right.

    Empty where all have one level, and in worlds without problems.
    """
    from etude.evaluation.pass_at_k import pass_at_k

    found = [json.loads((job.folder / "evaluation.json").read_text()) for job in jobs]
    counts = [[each.get("solved", {}).get(when, {}).get(bed.split) for when in ("before", "after")] for each in found]
    if not all(side for sides in counts for side in sides):
        return []
    pool = bed.goal.problems(bed.split)
    levels = [pool[i].level for i in range(len(counts[0][0]))]
    if len({*levels}) == 1:
        return []

    def at(solved: Sequence[int], level: str) -> float:
        own = [
            [i < n for i in range(bed.test.samples)] for n, name in zip(solved, levels, strict=True) if name == level
        ]
        return round(float(pass_at_k(own, k).mean()), 6)

    return [{name: (at(before, name), at(after, name)) for name in sorted({*levels})} for before, after in counts]


def _last(run: Path) -> Path:
    newest = max((run / "checkpoints").glob("step-*"), key=lambda p: int(p.name.split("-")[1]))
    return newest / "model/model.safetensors"
