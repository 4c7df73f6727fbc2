"""The claim of RLAD: a writer of hints and a solver in turn, against DAPO on the same problems without hints.

All begin from one model that was fine-tuned on worked lines, with hints of all kinds in view and without; it follows a
hint, right or wrong, and hardly ever finds the recipe itself. The first writer was shown hints that help it, and is the
same for all seeds. Problems are not parted by difficulty. A budget of C solutions is C hints of one solution each, or C
plain ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etude.core.episodes import Problem
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, Training, pairs, train, variant
from etude.experiments.cells import model_folder, spread
from etude.methods.rlvr.rlad import WorthwhileHints, accuracies, spend
from etude.tasks.language.operations import Operations

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

TASK, TAUGHT = Operations(), Operations(forms=("plain", "hinted", "hinted", "hinted"))
MODEL, WARM, WRITING, HINTS = "blank:2x64x4", 1000, 300, 2000
"""Supervised steps of the start and of the writer, and problems whose hints are tried."""
TURNS, STEPS, PROBLEMS = 3, 25, 150
"""Turns of the solver, its steps in each, and problems of each of the writer's batches between them."""
BUDGET, TESTS = 16, 200
SUPERVISED = {"problems": 64, "optimizer.lr": 4e-3, "optimizer.schedule": "linear", "optimizer.warmup": 0.05}
SHOWN = {"problems": 32, "optimizer.lr": 1e-3, "optimizer.schedule": "linear"}
SOLVER = {"optimizer.lr": 3e-4}
WRITER = {"optimizer.lr": 3e-4, "problems": PROBLEMS, "minibatches": 5}
DAPO = {"problems": 16, **SOLVER}
Paid = NDArray[np.float64]


@dataclass(frozen=True)
class Course:
    """Both arms of one seed."""

    seed: int
    start: str
    writer: str
    arm: Mapping[str, Any]
    baseline: Mapping[str, Any]


def figures(paid: Paid, bare: Paid) -> dict[str, float]:
    """Of [problems, hints, samples] solutions; `bare` are those without a hint, [problems, samples]."""
    return {
        "pass@1": float(paid.mean()), f"pass@{BUDGET}": float(paid.max((1, 2)).mean()),
        "best hint": float(paid.mean(2).max(1).mean()), "without hints": float(bare.mean()),
    }  # fmt: skip


def load(folder: str) -> LanguagePolicy:
    from etude.policies.language import LanguagePolicy

    return LanguagePolicy.load(folder, device="cpu")


def plain(solver: LanguagePolicy) -> Paid:
    """Solutions to the first test problems as they are, [problems, budget]."""
    tests, context = list(TASK.problems("test")[:TESTS]), examined(solver)
    return accuracies(solver, tests, [context.stream.draw("plain", p.id) for p in tests], BUDGET, context)


def examined(solver: LanguagePolicy) -> Context:
    """One draw of random numbers for all arms."""
    return Context(TASK, solver, Stream(START).split("tests"), max_tokens=TASK.max_tokens)


def follow(course: Course) -> dict[str, dict[str, float]]:
    """What both arms come to."""
    import torch

    torch.set_num_threads(1)
    seed, tests = course.seed, list(TASK.problems("test")[:TESTS])
    with ExitStack() as kept:

        def run(called: str, method: Any, steps: int, start: str) -> str:
            job = Training(called, method, TASK, seed, steps, start, problems=1, samples=1)
            folder = kept.enter_context(model_folder(job.folder()))
            train(replace(job, keep=str(folder)))
            return str(folder)

        writer, solver = course.writer, course.start
        for turn in range(1, TURNS + 1):
            given = {"experience.writer.model": writer, **SOLVER, **course.arm}
            solver = run(f"solver {turn}", variant("rlad-solver", given), STEPS, solver)
            if turn < TURNS:
                tried = {"rewards.0.solver.model": solver, **WRITER}
                writer = run(f"writer {turn}", variant("rlad-writer", tried), 1, writer)
        alone = run("dapo", variant("dapo", {**DAPO, **course.baseline}), TURNS * STEPS, course.start)
        solving, single = load(solver), plain(load(alone))
        first, again = (
            spend(load(writer), solving, tests, examined(solving), hints=m, samples=BUDGET // m) for m in (BUDGET, 1)
        )
        found = figures(first, plain(solving))
        return {"arm": found | {"more hints": found[f"pass@{BUDGET}"]}, "baseline": figures(
            single[:, None], single) | {"more hints": float(again.max((1, 2)).mean())}}  # fmt: skip


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """What a budget of solutions comes to, with hints and without."""
    taught = Training("start", variant("sft", SUPERVISED), TAUGHT, START, WARM, MODEL, problems=1)
    with model_folder(taught.folder()) as folder:
        train(replace(taught, keep=str(folder)))
        start = str(folder)
        shown = Training("writer 0", variant("sft", SHOWN), TASK, START, WRITING, start, worthwhile(start), problems=1)
        with model_folder(shown.folder()) as first:
            train(replace(shown, keep=str(first)))
            courses = [Course(seed, start, str(Path(first)), arm or {}, baseline or {}) for seed in seeds]
            found = spread(follow, courses)
        begun = plain(load(start))
    by_arm = [{k: [f[side][k] for f in found] for k in found[0][side]} for side in ("arm", "baseline")]
    before = {k: [value] * len(seeds) for k, value in figures(begun[:, None], begun).items()}
    steps = [float(TURNS * STEPS)] * len(seeds)
    return pairs(seeds, *by_arm, start=before, budgets={"steps": (steps, steps)})


def worthwhile(start: str) -> list[Problem]:
    """Hints that help the start, to be imitated."""
    part = WorthwhileHints(called="hints", problems=HINTS, alone=4)
    rows = part.rows_by(list(TASK.problems("train")[:HINTS]), TASK, load(start), START)
    return [
        Problem(f"hint/{i}", row["prompt"], info={"demonstration": row["completion"]}) for i, row in enumerate(rows)
    ]
