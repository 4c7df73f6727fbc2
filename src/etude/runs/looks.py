"""A look at what a claim is about before there is a plan: both arms, on seeds by which no verdict is reached."""

from __future__ import annotations

from pathlib import Path

from etude.core.errors import ConfigError
from etude.evaluation.gates import Verdict, conclude
from etude.evaluation.pairs import Results
from etude.runs.beds import CONFIRMING, TUNING
from etude.runs.claim_runs import PUBLISHED, Lines, collector
from etude.runs.claims import KEPT, arm_of, claim_of, folder_of, measures_of
from etude.runs.jobs import Workers
from etude.runs.plans import RUNS, Plan


def look(
    name: str, seeds: int = 2, *, first: int = TUNING, runs: Path = KEPT, workers: int | Workers | None = None
) -> tuple[Results, Verdict]:
    """Both arms of a claim as their papers set them, and what its gates would say of these few pairs.

    Nothing is written beside the claim.

    Args:
        seeds: pairs; a claim with `runs` trains so many of each arm for each.
        first: the first seed, below those that verdicts rest on.
        runs: where runs are kept; those that exist are used again.
        workers: runs at a time, or what does them, as for `run_jobs`.

    Raises: ConfigError for seeds that a verdict would rest on.
    """
    method, claim = claim_of(name)
    if seeds < 1 or first < 0 or first + seeds * claim.runs > CONFIRMING:
        raise ConfigError(
            f"A look is at one or more seeds below {CONFIRMING}, which no verdict rests on; "
            f"got {seeds} from {first} on, with {claim.runs} run(s) of each arm for a pair."
        )
    folder, plan = folder_of(name), Plan(name, claim, first_seed=first)
    lines = Lines(folder / RUNS, plan)
    collect = collector(method, arm_of(name), plan, lines, "", folder=folder, runs=runs, workers=workers)
    seen = Results.of(collect(PUBLISHED, range(first, first + seeds)))
    return seen, conclude(measures_of(claim), seen, learned_on=claim.learned_on, equal=claim.equal)
