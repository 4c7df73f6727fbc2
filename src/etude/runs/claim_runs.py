"""The runs of a claim: where they are recorded, and what trains both arms with the seeds that are still missing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.evaluation.pairs import Pair
from etude.runs.jobs import Workers
from etude.runs.plans import Plan, earlier, read_plan
from etude.runtime.jsonl import JsonLines, append

PUBLISHED, TUNED = "published", "tuned"
"""Both arms as their papers set them; both after the same sweep."""


@dataclass(frozen=True)
class Lines:
    """`runs.jsonl` of a claim: each line carries the hash of its plan.

    Args:
        path: the file.
        plan: what its lines must belong to.
    """

    path: Path
    plan: Plan

    def read(self) -> list[dict[str, Any]]:
        """Every line. Raises ConfigError for one of another plan."""
        lines = list(JsonLines.read(self.path))
        others = {line["plan"] for line in lines} - {self.plan.hash}
        if others:
            raise ConfigError(
                f"{self.path} belongs to the plan {', '.join(sorted(others))}, and the plan there now is "
                f"{self.plan.hash}: a plan that has runs is never changed. Restore it, or write another one with "
                f"`etude claims plan {self.plan.method} --reason ...`."
            )
        return lines

    def pairs(self, setting: str) -> list[Pair]:
        """Those of a setting, by their seeds."""
        found = [Pair.from_json(line["pair"]) for line in self.read() if line.get("setting") == setting]
        return sorted(found, key=lambda pair: pair.seed)

    def tuned(self) -> dict[str, Any] | None:
        """What tuning came to; None if it was not done."""
        return next((line["tuning"] for line in self.read() if "tuning" in line), None)

    def add(self, commit: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append lines."""
        append(self.path, ({"plan": self.plan.hash, "commit": commit, **line} for line in lines))


Collect = Callable[[str, Sequence[int]], list[Pair]]
"""Pairs of a setting for these seeds, trained if they are not there."""


def collector(
    method: Method,
    arm: str,
    plan: Plan,
    lines: Lines,
    commit: str,
    *,
    folder: Path,
    runs: Path,
    workers: int | Workers | None,
) -> Collect:
    """What trains both arms: on the claim's bed, or in an experiment of its own.

    Args:
        arm: the name that runs on a bed are made by.
        folder: the claim's.
        runs: where runs are kept.
        workers: runs at a time, or what does them.
    """
    if plan.claim.bed:
        return _on_bed(arm, plan, lines, commit, runs, workers)
    return _own(method, plan, lines, commit, _cells(method, folder, plan, runs), workers)


def _cells(method: Method, folder: Path, plan: Plan, runs: Path) -> Path:
    """Where the runs of an own experiment are kept: apart from those of the same plan with earlier code."""
    before = sum(read_plan(kept).hash == plan.hash for kept in earlier(folder))
    return runs / "claims" / (f"{method.id}-{before + 1}" if before else method.id)


def _own(
    method: Method, plan: Plan, lines: Lines, commit: str, cells: Path, workers: int | Workers | None
) -> Collect:  # fmt: skip
    """An experiment of the method's own."""
    from etude.experiments import experiment_of
    from etude.experiments.cells import at_a_time, kept_in
    from etude.runs.tuning import tune_own

    experiment = experiment_of(method.id)
    if experiment is None:
        raise ConfigError(f"The claim of {method.id} names no bed and has no experiment of its own.")

    count = workers if isinstance(workers, int) else None  # of a cluster `OnRay` says it

    def collect(setting: str, seeds: Sequence[int]) -> list[Pair]:
        with kept_in(cells), at_a_time(count):
            if setting == PUBLISHED:
                return experiment(seeds)
            best = _tuned(lines, commit, partial(tune_own, experiment, plan.claim))
            return experiment(seeds, arm=best["arm"], baseline=best["baseline"])

    return collect


def _on_bed(arm: str, plan: Plan, lines: Lines, commit: str, runs: Path, workers: int | Workers | None) -> Collect:
    """Runs of both arms on a bed."""
    from etude.runs.beds import load_bed
    from etude.runs.frontiers import with_frontiers
    from etude.runs.jobs import run_jobs
    from etude.runs.measuring import pairs_of
    from etude.runs.tuning import arms_of, tune

    bed, claim = load_bed(plan.claim.bed), plan.claim

    def collect(setting: str, seeds: Sequence[int]) -> list[Pair]:
        best: Mapping[str, Any] = {}
        if setting == TUNED:
            best = _tuned(lines, commit, partial(tune, bed, arm, claim, root=runs / "beds", workers=workers))
        jobs = arms_of(bed, arm, claim, seeds_of(plan, seeds), best, root=runs / "beds")
        run_jobs([*jobs[0], *jobs[1]], workers)
        own = [m.name for m in claim.measures if m.minimum is not None]
        pairs, count = pairs_of(bed, [m.name for m in claim.measures], *jobs, own=own), claim.runs
        if claim.frontier:
            pairs = with_frontiers(
                pairs, bed, arm, claim, seeds_of(plan, seeds), best, root=runs / "beds", workers=workers
            )
        return [pairs[i] if count == 1 else Pair.mean(s, pairs[i * count :][:count]) for i, s in enumerate(seeds)]

    return collect


def seeds_of(plan: Plan, pairs: Sequence[int]) -> list[int]:
    """Seeds of the runs that pairs are made of: the next ones of each arm, so many for each pair."""
    count, first = plan.claim.runs, plan.first_seed
    return [first + (pair - first) * count + i for pair in pairs for i in range(count)]


def _tuned(lines: Lines, commit: str, tune: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The fields that tuning sets on either arm; it is done once, and its line kept."""
    tuned = lines.tuned()
    if tuned is None:
        print("Both arms are tuned by the same sweep, once.", file=sys.stderr)
        tuned = tune()
        lines.add(commit, [{"tuning": tuned}])
    return dict(tuned["best"])
