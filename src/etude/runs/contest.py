"""Many arms on one bed, each against the bed's baseline with the same seeds: as published, and after the same tuning.

A file has a line for each run; everything that a table says is derived from the lines (`table`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from etude.core.errors import ConfigError, EtudeError
from etude.core.fields import WholeNumber
from etude.evaluation.intervals import Interval
from etude.evaluation.learning import fit_curve
from etude.evaluation.verdicts import differences, paired_interval
from etude.runs.arms import state
from etude.runs.beds import CONFIRMING, RUNS, Bed, Fields, runs_of, scores_of
from etude.runs.claim_runs import PUBLISHED, TUNED
from etude.runs.code import text_hash
from etude.runs.jobs import Job, Workers, run_jobs
from etude.runs.measuring import budgets, by_level
from etude.runs.tuning import changed, combinations, sweep_jobs, swept
from etude.runtime.interrupts import Interrupted
from etude.runtime.jsonl import JsonLines, append

SEEDS = 12
KEPT = Path("studies")
"""Where what came out is kept, by bed."""
Sweep = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of those that are compared.

    Args:
        label: its name in tables.
        method: with parts stacked by '+'.
        changes: fields set beside the bed's own.
        steps: its budget; 0 for the bed's.
        sweeps: by setting what is tuned before, on tuning seeds, by the largest mean area; nothing if empty.
    """

    label: str
    method: str
    changes: Fields = field(default_factory=dict)
    steps: WholeNumber = 0
    sweeps: Mapping[str, Sweep] = field(default_factory=lambda: {PUBLISHED: {}})


def both(bed: Bed, name: str) -> Arm:
    """A method as published, and after the bed's sweep."""
    sweeps: dict[str, Sweep] = {PUBLISHED: {}, TUNED: bed.sweep} if bed.sweep else {PUBLISHED: {}}
    return Arm(label=name, method=name, changes=bed.baseline_set if name == bed.baseline else {}, sweeps=sweeps)


def kept_in(bed: Bed) -> Path:
    """The file of a bed."""
    return KEPT / f"{bed.name}.jsonl"


# Runs


def compete(
    bed: Bed, arms: Sequence[Arm], path: Path, *, seeds: int = SEEDS, k: int = 1, root: Path = RUNS,
    workers: int | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Train what is missing, the bed's baseline first, and write a line for each run.

    An arm that cannot be trained on the bed gets a line that says why, and does not keep others from it.

    Args:
        k: of each level's pass@k, where the bed's test has so many samples of a problem.

    Raises: ConfigError if the file is of another recipe, or of code or a machine whose runs could not be equal.
    """
    here = {"bed": bed.name, "recipe": text_hash(repr(bed)), "state": state()}
    lines = list(JsonLines.read(path))
    if lines and (other := {k: lines[0][k] for k in here}) != here:
        differs = ", ".join(k for k in here if here[k] != other[k])
        raise ConfigError(
            f"{path} holds runs of another {differs} (code, versions of libraries or processor count as the state), "
            f"which cannot be paired with runs made here: move it away to begin anew."
        )
    there = {(line["arm"], line["setting"], line.get("seed")) for line in lines}
    todo = [
        (arm, setting)
        for arm in (both(bed, bed.baseline), *(a for a in arms if a.label != bed.baseline))
        for setting in arm.sweeps
        if not {(arm.label, setting, s) for s in (None, CONFIRMING + seeds - 1)} & there
    ]
    with Workers(workers) as pool:
        for arm, setting in todo:
            label = {**here, "arm": arm.label, "setting": setting}
            own = replace(bed, steps=arm.steps or bed.steps)
            made = _runs(own, arm, arm.sweeps[setting], seeds, k, root, pool)
            new = [{**label, **x} for x in made if (arm.label, setting, x.get("seed")) not in there]
            append(path, new)
            lines += new
    return lines


def _runs(bed: Bed, arm: Arm, sweep: Sweep, seeds: int, k: int, root: Path, pool: Workers) -> list[dict[str, Any]]:
    """What the runs of an arm came to, or a line that says why there are none."""
    try:
        best = _best(bed, arm, sweep, root, pool)
        jobs = runs_of(bed, arm.method, seeds, changed(bed, arm.method, arm.changes, best, root), root=root)
        run_jobs(jobs, pool)
    except Interrupted:
        raise
    except EtudeError as error:
        return [{"failed": str(error).replace(f"{root}/", "")}]  # the file is kept, and the folder is not
    return list(_lines(bed, jobs, best, k))


def _best(bed: Bed, arm: Arm, sweep: Sweep, root: Path, pool: Workers) -> Fields:
    """The setting of a sweep with the largest mean area on tuning seeds."""
    settings = combinations(sweep)
    if len(settings) == 1:
        return next(iter(settings.values()))
    jobs = sweep_jobs(bed, arm.method, settings, arm.changes, root)
    run_jobs([job for each in jobs.values() for job in each], pool)
    return settings[swept(bed, jobs)[1]]


def _lines(bed: Bed, jobs: Sequence[Job], best: Fields, k: int) -> Iterator[dict[str, Any]]:
    scores, counts, levels = scores_of(bed, jobs), budgets(jobs), by_level(bed, jobs)
    at_k = by_level(bed, jobs, k) if 1 < k <= bed.test.samples else []
    for i, curve in enumerate(scores.curves):
        yield {
            "seed": CONFIRMING + i, "tuned": dict(best), "curve": curve.round(6).tolist(),
            "area": round(float(scores.area[i]), 6), "end": round(float(scores.end[i]), 6),
            **{what: v[i] for what, v in counts.items()}, **({"levels": levels[i]} if levels else {}),
            **({"levels_at_k": at_k[i]} if at_k else {}),
        }  # fmt: skip


# What follows from them


@dataclass(frozen=True)
class Row:
    """An arm against the baseline, in one setting.

    Args:
        gap: of the area under the curve, in units of headroom: 1 is from the baseline to the ceiling.
        q: the smallest false discovery rate at which the difference counts (Benjamini and Hochberg 1995).
        verdict: 'better' or 'worse' at a false discovery rate of 5%; 'level' where the whole interval is smaller than
            what matters; else 'open'.
        ceiling, rate: of a curve that saturates, fitted to the arm's mean (`fit_curve`).
        completions: over the baseline's.
    """

    arm: str
    setting: str
    pairs: int
    area: float
    end: float
    gap: Interval
    q: float
    verdict: str
    ceiling: float
    rate: float
    completions: float
    tuned: Mapping[str, Any]


RATE = 0.05
"""Of the arms called better or worse, at most so many by chance."""


def table(bed: Bed, lines: Sequence[Mapping[str, Any]], setting: str) -> list[Row]:
    """Every arm against the baseline in a setting, the best first.

    Raises: ConfigError if the baseline has no runs, or if it leaves no headroom.
    """
    from scipy.stats import false_discovery_control

    runs = _by_arm(lines, setting)
    base = runs.pop(bed.baseline, None)
    if base is None:
        raise ConfigError(f"There are no runs of {bed.baseline} on {bed.name} as {setting}.")
    pairs = {arm: (own, {seed: base[seed] for seed in own}) for arm, own in runs.items()}
    if not pairs:
        return []
    adjusted = false_discovery_control([_p(*(_areas(side) for side in sides)) for sides in pairs.values()])
    rows = [_row(bed, arm, setting, *sides, float(q)) for (arm, sides), q in zip(pairs.items(), adjusted)]
    return sorted(rows, key=lambda row: -row.gap.value)


Runs = Mapping[int, Mapping[str, Any]]
"""Lines of an arm by seed."""


def _by_arm(lines: Sequence[Mapping[str, Any]], setting: str) -> dict[str, Runs]:
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for line in lines:
        if line["setting"] == setting and "failed" not in line:
            found.setdefault(line["arm"], {})[line["seed"]] = line
    return dict(found)


def _areas(runs: Runs) -> list[float]:
    return [line["area"] for line in runs.values()]


def _p(arm: Sequence[float], baseline: Sequence[float]) -> float:
    """Two-sided, of the paired t test; 1 where no run differs."""
    from scipy.stats import ttest_rel

    if not differences(arm, baseline).any():
        return 1.0
    return float(ttest_rel(arm, baseline).pvalue)


def _row(bed: Bed, arm: str, setting: str, own: Runs, base: Runs, q: float) -> Row:
    ceiling, start = bed.bounds[1], float(np.mean([line["curve"][0] for line in base.values()]))
    mean = float(np.mean(_areas(base)))
    if ceiling is None or ceiling <= mean:
        raise ConfigError(f"{bed.name} leaves no headroom: its ceiling is {ceiling}, and {bed.baseline} is at {mean}.")
    gap = paired_interval(_areas(own), _areas(base), level=1 - RATE)
    smallest = max(0.01 * (ceiling - (bed.bounds[0] or 0.0)), 0.1 * (mean - start))
    small = -smallest < gap.low and gap.high < smallest
    verdict = "level" if small else "open" if q >= RATE else "better" if gap.value > 0 else "worse"
    value, low, high = (x / (ceiling - mean) for x in (gap.value, gap.low, gap.high))
    sampled = _mean(own, "completions") / _mean(base, "completions") if _mean(base, "completions") else 1.0
    curve = np.mean([line["curve"] for line in own.values()], axis=0)
    fit = fit_curve(bed.looks, curve, bed.bounds)
    return Row(
        arm, setting, len(own), float(np.mean(_areas(own))), _mean(own, "end"),
        Interval(value, low, high, gap.level, gap.method), q, verdict, fit.ceiling, fit.rate, sampled,
        next(iter(own.values()))["tuned"],
    )  # fmt: skip


def _mean(runs: Runs, what: str) -> float:
    return float(np.mean([line.get(what, 0.0) for line in runs.values()]))


def settings_of(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """In which settings there are runs."""
    return list(dict.fromkeys(line["setting"] for line in lines if "failed" not in line))


def failures(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Why arms have no runs, by their labels."""
    return {line["arm"]: line["failed"] for line in lines if "failed" in line}
