"""Claims: the experiment that a method's claim asks for, and its recorded verdict."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from etude.core.edit import assignments
from etude.core.errors import ConfigError
from etude.core.method import Claim
from etude.core.registry import ROOT, get_method
from etude.experiments import experiment_of
from etude.experiments.cells import kept_in
from etude.tasks import resolve_task

PLACES = (ROOT / "claims", ROOT.parent.parent / "claims")
"""Where recorded verdicts are: inside an installed package, or beside the source."""

FRESH = 100
"""First seed of a claim in control: nothing was tuned on these."""


def recorded(method: str) -> dict[str, Any] | None:
    """What `claims/<id>.json` says; None if the claim was never run.

    A change of the code that changes what an experiment computes marks its record with 'stale' and the reason, until
    the claim is run again.
    """
    for place in PLACES:
        if (path := place / f"{method}.json").is_file():
            return dict(json.loads(path.read_text()))
    return None


def verdict_of(method: str) -> str | None:
    """The recorded verdict, 'stale' added where the code has since changed what the experiment computes."""
    record = recorded(method)
    if record is None:
        return None
    return f"{record['verdict']} (stale)" if "stale" in record else str(record["verdict"])


def run_claim(method: str, *, out: Path, runs: Path, workers: int | None = None) -> dict[str, Any]:
    """Do a claim's experiment and write its verdict.

    Returns what was written: statement, verdict ('held', 'not held', 'inconclusive'), both arms' scores, the interval
    of the difference, seeds, commit and hardware. Raises ConfigError if the method makes no claim.
    """
    owner = get_method(method)
    claim = owner.claim
    if claim is None:
        raise ConfigError(f"{method} makes no claim.")
    began = time.monotonic()
    own = experiment_of(method)
    if own:
        with kept_in(runs / owner.id):
            outcome = own()
    else:
        outcome = _compare(method, claim, runs, workers)
    from etude.runtime.environment import record

    about = {"method": method, "statement": claim.statement, **outcome, "seconds": round(time.monotonic() - began, 1)}
    here = record(0)
    about["environment"] = {k: here[k] for k in ("versions", "commit")}
    about["environment"]["hardware"] = {k: here[k] for k in ("platform", "processor", "cores", "devices")}
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{owner.id}.json"
    path.write_text(json.dumps(about, indent=1) + "\n")
    return {**about, "path": str(path)}


def _compare(method: str, claim: Claim, runs: Path, workers: int | None) -> dict[str, Any]:
    from etude.evaluation.comparison import verdict
    from etude.runs.comparing import final_scores, jobs_for, run_jobs

    if not claim.baseline:
        raise ConfigError(
            f"The claim of {method} names no baseline and has no experiment of its own, so it cannot be checked."
        )
    fields = tuple(assignments(claim.changes))
    metric, _, split = claim.metric.partition(":")
    together = resolve_task(claim.task).together
    arms = {
        name: jobs_for(
            name, claim.task, claim.model, claim.seeds, claim.steps, fields, runs, FRESH * together, together=together
        )
        for name in (method, claim.baseline)
    }
    run_jobs([j for jobs in arms.values() for j in jobs], workers)
    scores = {name: final_scores(jobs, metric, split or "test") for name, jobs in arms.items()}
    result = verdict(scores[method], scores[claim.baseline], claim.direction, claim.margin)
    spread = result.interval.to_json()
    return {
        "verdict": result.outcome,
        "summary": _sentence(method, claim, scores, spread),
        "task": claim.task, "model": claim.model, "metric": claim.metric, "direction": claim.direction,
        "margin": claim.margin, "steps": claim.steps, "seeds": claim.seeds, "changes": dict(claim.changes),
        "arms": scores, "difference": spread,
    }  # fmt: skip


def _sentence(method: str, claim: Claim, scores: dict[str, list[float]], spread: dict[str, Any]) -> str:
    means = {name: sum(s) / len(s) for name, s in scores.items()}
    ends = [f"{spread[k]:+.3f}" if spread[k] is not None else "unbounded" for k in ("low", "high")]
    return (
        f"{claim.metric} on {claim.task} after {claim.steps} steps, {claim.seeds} seeds: {method} {means[method]:.3f}, "
        f"{claim.baseline} {means[claim.baseline]:.3f}; difference {spread['value']:+.3f} (95% {ends[0]} to {ends[1]})."
    )
