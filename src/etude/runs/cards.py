"""The card of a bed: what was measured on it, so that one knows what it can decide before it is used."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etude.evaluation.verdicts import ALPHA, LOOKS
from etude.runs.arms import state
from etude.runs.beds import CONFIRMING, RUNS, Bed, Scores, beds, beside, runs_of, scores_of, start_of
from etude.runs.jobs import run_jobs
from etude.runs.tuning import combinations, sweep_jobs, swept

if TYPE_CHECKING:
    from etude.evaluation.gates import Void

SEEDS = 12
"""Seeds of the baseline."""
KS = (1, 8, 64)


def card_path(name: str) -> Path:
    """Where the card of a bed is written: beside its recipe; of one that came with the package, in `beds/` here."""
    return beside(_shipped(name))


def _shipped(name: str) -> Path:
    return beds().get(name, Path(name)).with_suffix(".json")


def read_card(name: str) -> dict[str, Any] | None:
    """What was measured on a bed; None if nothing was."""
    found = next((path for path in (card_path(name), _shipped(name)) if path.is_file()), None)
    return None if found is None else dict(json.loads(found.read_text()))


def make_card(bed: Bed, *, root: Path = RUNS, workers: int | None = None) -> dict[str, Any]:
    """Measure a bed: its start, the baseline's sweep, its curve over twelve fresh seeds, what can be told apart.

    Runs that exist already are used again, so a stopped measurement goes on.

    Returns: JSON values; in `resolves`, by pairs, the half width of the interval of a difference whose pairs are as far
    apart as two seeds of the baseline: pairs that share their draws resolve less.
    """
    from etude.runtime.environment import record

    began = time.monotonic()
    settings = combinations(bed.sweep)
    each = sweep_jobs(bed, bed.baseline, settings, bed.baseline_set, root)
    run_jobs([j for jobs in each.values() for j in jobs], workers)
    areas, best = swept(bed, each)
    changes = {**bed.baseline_set, **settings[best]}
    jobs = runs_of(bed, bed.baseline, SEEDS, changes, first=CONFIRMING, root=root)
    run_jobs(jobs, workers)
    found, here = scores_of(bed, jobs), record(0)
    return {
        "bed": bed.name,
        "start": _start(bed, found, root),
        "floor": bed.bounds[0], "ceiling": bed.bounds[1],
        "sweep": {k: _means(s) for k, s in areas.items()},
        "tuned": settings[best],
        "baseline": _baseline(found),
        "resolves": {m: {str(n): _half_width(getattr(found, m), n) for n in LOOKS} for m in ("end", "area")},
        "seconds_per_run": round(float(np.mean([_seconds(job.folder) for job in jobs])), 1),
        "measured": {"seconds": round(time.monotonic() - began, 1), "commit": here["commit"], "state": state(),
                     "processor": here["processor"], "kernels": here["kernels"], "seeds": SEEDS},
    }  # fmt: skip


def doubts(bed: Bed, card: Mapping[str, Any]) -> list[Void]:
    """What makes a claim about areas void on a measured bed, whatever its method, unless it says what matters."""
    from etude.core.claims import Measure
    from etude.evaluation.gates import standing
    from etude.evaluation.pairs import Results

    start, found = card["start"][bed.metric], card["baseline"]
    baseline = Results({}, {what: [found[what]] for what in ("end", "area")}, {"end": [start]})
    return standing(Measure(name="area", bounds=bed.bounds), baseline, "end")


def _start(bed: Bed, found: Scores, root: Path) -> dict[str, Any]:
    """The metric before training; of language also pass@1, 8 and 64."""
    from etude.core.task import LanguageTask

    about: dict[str, Any] = {bed.metric: round(float(found.start.mean()), 4)}
    if isinstance(bed.goal, LanguageTask) and not bed.goal.together:
        from etude.runs.evaluate import evaluate

        split = bed.test.split or None
        scores = evaluate(start_of(bed, root), bed.goal, k=KS, problems=bed.test.problems, samples=max(KS), split=split)
        first = next(iter(scores.values()))
        about |= {f"pass@{k}": round(first[f"pass@{k}"].value, 4) for k in KS}
    return about


def _means(found: Scores) -> dict[str, float]:
    return {"area": round(float(found.area.mean()), 4), "end": round(float(found.end.mean()), 4)}


def _baseline(found: Scores) -> dict[str, Any]:
    """Its curve, its end and area, and how far seeds lie apart."""
    return {
        "curve": {"at": found.at.tolist(), "mean": found.curves.mean(0).round(4).tolist(),
                  "deviation": found.curves.std(0, ddof=1).round(4).tolist()},
        "end": round(float(found.end.mean()), 4), "end_deviation": round(float(found.end.std(ddof=1)), 4),
        "area": round(float(found.area.mean()), 4), "area_deviation": round(float(found.area.std(ddof=1)), 4),
    }  # fmt: skip


def _half_width(scores: NDArray[np.float64], pairs: int) -> float:
    """Of the interval of a mean difference between independent seeds."""
    from scipy.special import stdtrit

    spread = float(np.sqrt(2) * scores.std(ddof=1))
    return round(float(stdtrit(pairs - 1, 1 - ALPHA / 2)) * spread / float(np.sqrt(pairs)), 4)


def _seconds(folder: Path) -> float:
    """Seconds of training, of the run's own clock."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return float(json.loads(lines[-1])["seconds"])
