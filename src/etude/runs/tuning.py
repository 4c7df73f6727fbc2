"""Both arms of a claim on its bed, as published or after the same sweep."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from etude.core.claims import Claim, core_measures
from etude.core.edit import set_values
from etude.evaluation.pairs import Pair, Results
from etude.runs.arms import composed
from etude.runs.beds import RUNS, TUNING, Bed, Fields, Scores, assigned, runs_of, scores_of, start_of
from etude.runs.jobs import Job, Workers, run_jobs

RATE = "optimizer.lr"
SEEDS, TOGETHER = 2, 6
"""Seeds of each setting; more where seeds train together and cost next to nothing."""


def arms_of(
    bed: Bed, method: str, claim: Claim, seeds: Sequence[int], best: Mapping[str, Any], *, root: Path = RUNS
) -> tuple[list[Job], list[Job]]:
    """Runs of the method and of its baseline with these seeds.

    Args:
        best: what tuning set, {'arm': fields, 'baseline': fields}.
    """

    def runs(side: str, name: str, own: Fields) -> list[Job]:
        fields = changed(bed, name, own, best.get(side, {}), root)
        return [
            job for first, count in _spans(seeds) for job in runs_of(bed, name, count, fields, first=first, root=root)
        ]

    arms = [runs(*side) for side in _sides(bed, method, claim)]
    return arms[0], arms[1]


def changed(bed: Bed, arm: str, own: Fields, best: Fields, root: Path = RUNS) -> Fields:
    """Fields of an arm with those that tuning set, less what is so without it: such runs are those of the arm as it is.

    Args:
        own: fields that the arm has untuned, beside the bed's.
    """
    if not best:
        return own
    fields = [f for f in assigned(bed, {**bed.set, **own}, root) if not f.startswith("task.")]
    method = set_values(composed(arm, bed.goal.world), fields)
    told = {name: value for name, value in best.items() if set_values(method, {name: value}) != method}
    if set_values(method, told) != set_values(method, best):  # one field says which part another one is of
        told = dict(best)
    if RATE in told and told[RATE] == _automatic(bed, method, root):
        del told[RATE]
    return {**own, **told}


def _automatic(bed: Bed, method: Any, root: Path) -> float | None:
    """The learning rate that a model of the bed gets where a method names none; None if it names one."""
    if bed.goal.together or getattr(method, "optimizer", None) is None or method.optimizer.lr is not None:
        return None
    from etude.optimizers.adam import automatic_rate
    from etude.policies.language import LanguagePolicy

    policy = LanguagePolicy.load(start_of(bed, root), device="cpu")
    return automatic_rate(sum(weight.numel() for weight in policy.parameters()))


def best_setting(values: Mapping[str, float]) -> str:
    """The label of the largest value, the first of equal ones; one that is not a number is worse than any.

    >>> best_setting({"lr=0.1": 0.5, "lr=0.2": float("nan"), "lr=0.4": 0.5})
    'lr=0.1'
    """
    return max(values, key=lambda label: -np.inf if np.isnan(values[label]) else values[label])


def sweep_jobs(
    bed: Bed, method: str, settings: Mapping[str, Fields], own: Fields, root: Path = RUNS
) -> dict[str, list[Job]]:
    """Runs of every setting of a sweep, on seeds that nothing else uses; `own`: fields that all have."""
    seeds = TOGETHER if bed.goal.together else SEEDS
    return {
        label: runs_of(bed, method, seeds, {**own, **each}, first=TUNING, root=root) for label, each in settings.items()
    }


def swept(bed: Bed, jobs: Mapping[str, Sequence[Job]]) -> tuple[dict[str, Scores], str]:
    """What finished runs of a sweep came to, and the setting with the largest mean area under its curve."""
    scores = {label: scores_of(bed, each) for label, each in jobs.items()}
    return scores, best_setting({label: float(each.area.mean()) for label, each in scores.items()})


def tune(
    bed: Bed, method: str, claim: Claim, *, root: Path = RUNS, workers: int | Workers | None = None
) -> dict[str, Any]:  # fmt: skip
    """Both arms over the same sweep, each with its own best: the setting with the largest mean area under its curve.

    Returns: JSON values: 'areas' by side and setting, and 'best', the fields that each side takes.
    """
    sweep = bed.sweep if claim.sweep is None else claim.sweep
    other = sweep if claim.baseline_sweep is None else claim.baseline_sweep
    settings = {"arm": combinations(sweep), "baseline": combinations(other)}
    runs = {side: sweep_jobs(bed, name, settings[side], own, root) for side, name, own in _sides(bed, method, claim)}
    run_jobs([job for arms in runs.values() for jobs in arms.values() for job in jobs], workers)
    areas = {
        side: {label: float(scores.area.mean()) for label, scores in swept(bed, arms)[0].items()}
        for side, arms in runs.items()
    }
    return {"seeds": TOGETHER if bed.goal.together else SEEDS, **_chosen(settings, areas)}


def tune_own(experiment: Callable[..., list[Pair]], claim: Claim) -> dict[str, Any]:
    """As `tune`, by an experiment of a claim's own: the largest mean of the measure on which the baseline must learn.

    Where it need learn nothing, of the first that decides; the least, if the claim sees the method lower there. Both
    arms go through their sweeps side by side, a setting of each in every experiment.
    """
    sweep, other = claim.sweep or {}, claim.baseline_sweep or claim.sweep or {}
    settings = {"arm": combinations(sweep), "baseline": combinations(other)}
    measure, sign = _tuned_by(claim)
    seeds = range(TUNING, TUNING + SEEDS)
    found: dict[str, dict[str, float]] = {"arm": {}, "baseline": {}}
    for (label, arm), (other_label, baseline) in zip(settings["arm"].items(), settings["baseline"].items()):
        results = Results.of(experiment(seeds, arm=arm, baseline=baseline))
        found["arm"][label] = float(np.mean(results.arm[measure]))
        found["baseline"][other_label] = float(np.mean(results.baseline[measure]))
    return {"seeds": SEEDS, **_chosen(settings, found, sign)}


def _tuned_by(claim: Claim) -> tuple[str, int]:
    """The measure that tells settings of an own experiment apart, and -1 where less of it is better."""
    decides = core_measures(claim.measures)[0]
    if claim.learned_on is not None:
        return claim.learned_on, 1
    return decides.name, -1 if decides.direction == "lower" else 1


def _chosen(
    settings: Mapping[str, Mapping[str, dict[str, Any]]], found: Mapping[str, Mapping[str, float]], sign: int = 1
) -> dict[str, Any]:
    """The best setting of each side, the least with sign -1, and what each came to."""
    best = {
        side: settings[side][best_setting({label: sign * mean for label, mean in means.items()})]
        for side, means in found.items()
    }
    rounded = {side: {label: round(mean, 4) for label, mean in means.items()} for side, means in found.items()}
    return {"areas": rounded, "best": best}


def combinations(sweep: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, Any]]:
    """Every combination of a sweep, by a label; one without changes if there is nothing to sweep.

    >>> combinations({"lr": [0.1, 0.2]})
    {'lr=0.1': {'lr': 0.1}, 'lr=0.2': {'lr': 0.2}}
    """
    made = [dict(zip(sweep, values)) for values in itertools.product(*sweep.values())]
    return {
        ", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in s.items()) or "as it is": s
        for s in made
    }


def at_the_edge(sweep: Mapping[str, Sequence[Any]], best: Mapping[str, Any]) -> list[str]:
    """Fields whose best value is the first or last of three or more: a better one may lie beyond.

    >>> at_the_edge({"lr": [0.1, 0.2, 0.4], "epochs": [1, 4]}, {"lr": 0.4, "epochs": 4})
    ['lr']
    """
    return [name for name, values in sweep.items() if len(values) > 2 and best[name] in (values[0], values[-1])]


def _sides(bed: Bed, method: str, claim: Claim) -> tuple[tuple[str, str, Mapping[str, Any]], ...]:
    its = bed.baseline_set if claim.baseline == bed.baseline else {}
    return ("arm", method, claim.changes), ("baseline", claim.baseline, {**its, **claim.baseline_changes})


def _spans(seeds: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of consecutive seeds, as first seed and count.

    >>> _spans([3, 4, 5, 9])
    [(3, 3), (9, 1)]
    """
    spans: list[tuple[int, int]] = []
    for seed in seeds:
        if spans and sum(spans[-1]) == seed:
            spans[-1] = (spans[-1][0], spans[-1][1] + 1)
        else:
            spans.append((seed, 1))
    return spans
