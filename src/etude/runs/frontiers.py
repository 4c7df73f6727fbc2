"""Frontiers of both arms of a claim on its bed: every setting that traces one, trained and measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from etude.core.claims import Claim
from etude.core.errors import ConfigError
from etude.evaluation.frontiers import Frontier, divergence, matched
from etude.evaluation.pairs import Pair
from etude.runs.beds import RUNS, Bed, scores_of, start_of
from etude.runs.jobs import Job, Workers, run_jobs
from etude.runs.measuring import TRACED
from etude.runs.saved import locate
from etude.runs.tuning import arms_of, combinations

HEIGHT, REACH = TRACED, f"{TRACED}:kl"
"""The mean score over the divergences that both arms reach, and the largest divergence of each arm."""
MEASURED = "divergence.json"


def with_frontiers(
    pairs: Sequence[Pair], bed: Bed, method: str, claim: Claim, seeds: Sequence[int], best: Mapping[str, Any], *,
    root: Path = RUNS, workers: int | Workers | None = None,
) -> list[Pair]:  # fmt: skip
    """Pairs with the measures 'frontier' and 'frontier:kl', from further runs of both arms with the same seeds.

    Args:
        seeds: of the runs of each arm, in the pairs' order.
        best: what tuning set, {'arm': fields, 'baseline': fields}.

    Raises: ConfigError on a bed of control, whose policies have no divergence per completion.
    """
    if bed.goal.together:
        raise ConfigError(f"{bed.name} is no bed of language models, and frontiers are of those: leave `frontier` out.")
    traced = _traced(claim)
    jobs = [arms_of(bed, method, claim, seeds, _beside(best, each), root=root) for each in traced]
    run_jobs([job for sides in jobs for side in sides for job in side], workers)
    start = start_of(bed, root)
    arm, baseline = ([_frontier(bed, [j[side][i] for j in jobs], start) for i in range(len(seeds))] for side in (0, 1))
    found = [matched(one, other) for one, other in zip(arm, baseline)]
    return [
        replace(
            pair,
            arm={**pair.arm, HEIGHT: heights[0], REACH: one.reach},
            baseline={**pair.baseline, HEIGHT: heights[1], REACH: other.reach},
        )
        for pair, heights, one, other in zip(pairs, found, arm, baseline, strict=True)
    ]


def _traced(claim: Claim) -> list[dict[str, dict[str, Any]]]:
    """Fields of either side, setting by setting."""
    arm = combinations(claim.frontier)
    baseline = combinations(claim.frontier if claim.baseline_frontier is None else claim.baseline_frontier)
    return [{"arm": one, "baseline": other} for one, other in zip(arm.values(), baseline.values(), strict=True)]


def _beside(best: Mapping[str, Any], each: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {side: {**best.get(side, {}), **fields} for side, fields in each.items()}


def _frontier(bed: Bed, jobs: Sequence[Job], start: str) -> Frontier:
    scores = scores_of(bed, jobs)
    return Frontier([_divergence(bed, job, start) for job in jobs], scores.end.tolist(), float(scores.start[0]))


def _divergence(bed: Bed, job: Job, start: str) -> float:
    """Of a finished run from the bed's start, on the bed's test; kept beside the run."""
    from etude.evaluation.language import evaluate_split
    from etude.policies.language import LanguagePolicy
    from etude.runtime.disk import replace_file

    path = job.folder / MEASURED
    if path.is_file():
        return float(json.loads(path.read_text())["kl"])
    end = Path(locate(job.folder)[0]) / "model"
    policy, before = (LanguagePolicy.load(name, device="cpu") for name in (str(end), start))
    found = evaluate_split(
        policy, bed.goal, bed.split, problems=bed.test.problems, samples=bed.test.samples, seed=job.seed
    )
    kl = divergence(policy, before, found)
    replace_file(path, json.dumps({"kl": kl, "start": start}).encode())
    return kl
