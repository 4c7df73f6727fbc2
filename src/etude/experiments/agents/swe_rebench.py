"""The claim of SWE-rebench: tasks that a policy may have seen the like of, against fresh ones, by their dates.

The arm is what it resolves of the tasks that are flagged for it, the baseline what the same policy resolves of the
others. How well the collection judges candidates of which it is known what they are is beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from etude.evaluation.fresh_tasks import resolved
from etude.evaluation.language import evaluate_split
from etude.evaluation.pairs import Pair
from etude.evaluation.seeded_candidates import mistaken, seeded
from etude.evaluation.task_collection import collect
from etude.experiments.arms import START, pairs, variant
from etude.experiments.cells import Cell, recorded, spread, trained
from etude.tasks.agents.mini_swe import MiniSWE

SHOWN, ASKED = MiniSWE(templates="old"), MiniSWE()
MODEL, STEPS, RELEASED = "blank:2x128x4@code", 250, "2025-07-01"
TASKS, RUNS = 300, 5
GOOD, BAD = 60, 5
MEASURE, JUDGED = "resolved", "candidates judged rightly"


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Shares of tasks resolved, of flagged ones and of fresh ones, and of candidates that were judged rightly."""
    method = variant("swe-rebench")
    cells = [Cell("swe-rebench", method, SHOWN, seed, STEPS, MODEL) for seed in seeds]
    found = spread(follow, cells)
    right = [recorded(f"candidates-{s}", [GOOD, BAD, s], partial(judged_rightly, s)) for s in seeds]
    return pairs(
        seeds, {MEASURE: [f["resolved/old"] for f in found], JUDGED: right},
        {MEASURE: [f["resolved/fresh"] for f in found]},
    )  # fmt: skip


def follow(cell: Cell) -> dict[str, float]:
    """Show repairs of the older half, and say what five runs on tasks of all functions resolve."""
    loop, _ = trained(cell)
    looked = evaluate_split(loop.policy, ASKED, "test", problems=TASKS, samples=RUNS, seed=START)
    dates = [row[0].problem.info["created_at"] for row in looked.episodes]
    return {name: interval.value for name, interval in resolved(looked.correct, dates, RELEASED).items()}


def judged_rightly(seed: int) -> float:
    """The share of candidates that were kept or refused as they should be, and for the right reason."""
    candidates, wrong = seeded(GOOD, BAD, seed)
    found = collect(candidates)
    return 1 - len(mistaken([p.id for p in found.kept], dict(found.refused), wrong)) / len(candidates)
