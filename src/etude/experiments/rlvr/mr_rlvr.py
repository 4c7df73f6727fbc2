"""The claim of MR-RLVR: few sums, with worked answers, from a policy that now and then gets one right.

All arms begin from one policy and end with the same steps of GRPO on the same problems. Before them come exercises
about the problems' worked answers, as many supervised steps on these answers, or nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from etude.core.episodes import Problem
from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, pairs, started, variant
from etude.experiments.cells import by_label, spread
from etude.experiments.watched import Job, Run, ends, run, scores
from etude.methods.rlvr.mr_rlvr import Exercises, ProcessReward
from etude.tasks.language.sums import Sums

TASK, FEW = Sums(terms=(4, 5)), 500
"""What is trained on: so many problems."""
WARM, BEFORE, STEPS = 16, 60, 60
"""Supervised steps before all arms; steps of what comes before GRPO, and of GRPO."""
CHANGES = {"problems": 16, "experience.size": 8, "optimizer.lr": 2e-4}
ALONE, IMITATED, ARM = "grpo", "imitation", "mr-rlvr"
PROCESS = "process reward, from start to end"
COMPARED = {
    "pass@1 against GRPO alone": ("pass@1", ALONE),
    "pass@8 against GRPO alone": ("pass@8", ALONE),
    "pass@1 after imitation": ("pass@1", IMITATED),
    "pass@8 after imitation": ("pass@8", IMITATED),
}
"""By measure: which score, against which arm."""


@dataclass(frozen=True)
class Course:
    """An arm of one seed: what comes before GRPO, if anything does, and GRPO."""

    label: str
    before: Job | None
    last: Job


def exercises(problems: Sequence[Problem]) -> list[Problem]:
    """Exercises about the problems' worked answers."""
    rows: list[dict[str, Any]] = Exercises().rows(problems, TASK, START)
    return [Problem(f"exercise/{r['id']}", r["prompt"], r["answer"], r["level"], r) for r in rows]


def courses(seeds: Sequence[int], start: str) -> list[Course]:
    """Every arm of every seed."""
    few = [TASK.problems("train")[i] for i in range(FEW)]
    process = variant("grpo", {**CHANGES}, rewards=(ProcessReward(),))
    imitation = variant("sft", {"problems": 16, "optimizer.lr": 2e-4})
    made = []
    for seed in seeds:
        last = Job(ALONE, variant("grpo", CHANGES), TASK, seed, STEPS, start, few, samples=8)
        practice = Job("exercises", process, TASK, seed, BEFORE, start, exercises(few), problems=50, samples=1)
        shown = Job("worked answers", imitation, TASK, seed, BEFORE, start, few, problems=50, samples=1)
        made += [Course(ARM, practice, last), Course(IMITATED, shown, last), Course(ALONE, None, last)]
    return made


def follow(course: Course) -> tuple[Run | None, Run]:
    """What came before, and GRPO after it."""
    if course.before is None:
        return None, run(course.last)
    with tempfile.TemporaryDirectory() as folder:
        before = run(replace(course.before, keep=folder))
        last = replace(course.last, start=folder, label=f"grpo after {course.before.label}")
        return before, run(last)


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Three arms from the same start."""
    with started(TASK, steps=WARM) as first:
        work = courses(seeds, first.folder)
        look = Job("start", variant("grpo", CHANGES), TASK, START, 0, first.folder, samples=8)
        begun = run(look)
        found = by_label([c.label for c in work], spread(follow, work))
    ended = {label: [last for _, last in both] for label, both in found.items()}
    arm = {measure: scores(ended[ARM], name) for measure, (name, _) in COMPARED.items()}
    baseline = {measure: scores(ended[other], name) for measure, (name, other) in COMPARED.items()}
    paid = [ends([m["reward"] for m in before.metrics]) for before, _ in found[ARM] if before is not None]
    arm[PROCESS], baseline[PROCESS] = [last for _, last in paid], [early for early, _ in paid]
    start = {measure: [begun.scores[name]] * len(seeds) for measure, (name, _) in COMPARED.items()}
    budgets = {"rl completions": (_rows(ended[ARM]), _rows(ended[ALONE]))}
    return pairs(seeds, arm, baseline, start=start, budgets=budgets)


def _rows(found: Sequence[Run]) -> list[float]:
    """How many completions each run learned from."""
    return [float(sum(m["rows"] for m in r.metrics)) for r in found]
