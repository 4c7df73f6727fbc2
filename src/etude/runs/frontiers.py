"""Frontiers of finished runs, and those of both arms of a claim on its bed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from etude.core.claims import Claim
from etude.core.errors import ConfigError
from etude.core.worlds import World
from etude.evaluation.frontiers import Frontier, divergence, matched
from etude.evaluation.pairs import Pair
from etude.runs.beds import RUNS, Bed, start_of
from etude.runs.comparing import evaluations
from etude.runs.jobs import Job, Workers, run_jobs
from etude.runs.measuring import TRACED
from etude.runs.saved import locate
from etude.runs.tuning import arms_of, combinations

if TYPE_CHECKING:
    from etude.evaluation.comparison import Comparison

HEIGHT, REACH = TRACED, f"{TRACED}:kl"
"""The mean score over the divergences that both arms reach, and the largest divergence of each arm."""
MEASURED = "divergence.json"
PROBLEMS, SAMPLES, POINTS = 100, 4, 21


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
    on = (bed.metric, bed.split, bed.test.problems, bed.test.samples)
    arm, baseline = (
        frontiers(bed.goal, [sides[which] for sides in jobs], start_of(bed, root), *on) for which in (0, 1)
    )
    found = [matched(one, other) for one, other in zip(arm, baseline)]
    return [
        replace(
            pair,
            arm={**pair.arm, HEIGHT: heights[0], REACH: one.reach},
            baseline={**pair.baseline, HEIGHT: heights[1], REACH: other.reach},
            start={**pair.start, HEIGHT: other.start},
        )
        for pair, heights, one, other in zip(pairs, found, arm, baseline, strict=True)
    ]


def traced(frontier: str | None, goal: Any) -> list[tuple[str, ...]]:
    """Fields of each run of an arm, as `--set` has them; of one run without any where nothing is traced.

    Raises: ConfigError for what is no field with two values or more, and for a task of no language models.

    >>> traced("objective.beta=0.1,0.5", None), traced(None, None)
    ([('objective.beta=0.1',), ('objective.beta=0.5',)], [()])
    """
    if frontier is None:
        return [()]
    field, _, values = frontier.partition("=")
    each = list(dict.fromkeys(filter(None, (value.strip() for value in values.split(",")))))
    if not field or len(each) < 2:
        raise ConfigError(
            "A frontier is a field with two values or more, as in rewards.kl-penalty.coefficient=0.01,0.05,0.2; "
            f"got {frontier!r}."
        )
    if goal is not None and (goal.together or goal.world is not World.LANGUAGE):
        raise ConfigError(f"{goal.id} is no task of language models, and frontiers are of those: compare without one.")
    return [(f"{field}={value}",) for value in each]


def at_equal_divergence(
    arms: Mapping[str, Sequence[Sequence[Job]]], goal: Any, start: str, metric: str, split: str, problems: int | None
) -> Comparison:
    """Statistics of what arms earn over the divergences that all reach, seed by seed, and the curves themselves.

    Args:
        arms: runs by setting, the same seeds of each.
        problems: on which divergences are measured, four completions of each; as many as runs are evaluated on.
    """
    from etude.evaluation.comparison import compare_arms

    found = {
        arm: frontiers(goal, jobs, start, metric, split, problems or PROBLEMS, SAMPLES) for arm, jobs in arms.items()
    }
    heights = [matched(*of_seed) for of_seed in zip(*found.values(), strict=True)]
    scores = {arm: {goal.id: [each[i] for each in heights]} for i, arm in enumerate(found)}
    grid = np.linspace(0.0, min(one.reach for each in found.values() for one in each), POINTS)
    lines = {arm: {goal.id: [one.at(grid).tolist() for one in each]} for arm, each in found.items()}
    reach = {f"KL that {arm} reaches": round(float(np.mean([f.reach for f in each])), 3) for arm, each in found.items()}
    return compare_arms(
        scores, lines, grid, metric=f"{metric} ({split}), mean over the KL that all reach", curve=f"{metric} ({split})",
        axis="KL from the start in nats per completion", about=reach,
    )  # fmt: skip


def _traced(claim: Claim) -> list[dict[str, dict[str, Any]]]:
    """Fields of either side, setting by setting."""
    arm = combinations(claim.frontier)
    baseline = combinations(claim.frontier if claim.baseline_frontier is None else claim.baseline_frontier)
    return [{"arm": one, "baseline": other} for one, other in zip(arm.values(), baseline.values(), strict=True)]


def _beside(best: Mapping[str, Any], each: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {side: {**best.get(side, {}), **fields} for side, fields in each.items()}


def frontiers(
    goal: Any, jobs: Sequence[Sequence[Job]], start: str, metric: str, split: str, problems: int, samples: int
) -> list[Frontier]:
    """One for each seed, from finished runs.

    Args:
        jobs: by setting, the same seeds of each.
        start: the model that all began from.
        metric, split: what was evaluated before and after training.
        problems, samples: of the split, on which divergences are measured.
    """
    ends = [evaluations(each, metric, split, [0, each[0].steps]) for each in jobs]
    return [
        Frontier(
            [_divergence(each[i], goal, start, split, problems, samples) for each in jobs],
            [scores[i][1] for scores in ends], ends[0][i][0],
        )
        for i in range(len(jobs[0]))
    ]  # fmt: skip


def _divergence(job: Job, goal: Any, start: str, split: str, problems: int, samples: int) -> float:
    """Of a finished run from its start, on a test of its own random numbers; kept beside the run."""
    from etude.evaluation.language import evaluate_split
    from etude.policies.language import LanguagePolicy
    from etude.runtime.disk import replace_file

    path, asked = job.folder / MEASURED, {"split": split, "problems": problems, "samples": samples}
    if path.is_file() and (known := json.loads(path.read_text()))["on"] == asked:
        return float(known["kl"])
    end = Path(locate(job.folder)[0]) / "model"
    policy, before = (LanguagePolicy.load(name, device="cpu") for name in (str(end), start))
    found = evaluate_split(policy, goal, split, problems=problems, samples=samples, seed=job.seed)
    kl = divergence(policy, before, found)
    replace_file(path, json.dumps({"kl": kl, "on": asked}).encode())
    return kl
