"""The claim of self-prm: what a policy's word is worth before, along and after reinforcement of its solutions alone.

It begins as one that was shown worked answers and judgements of given solutions; only the former are trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.episodes import Problem
from etude.evaluation.judging import ACCEPTED, Judged, Judging, evaluate_judging, lag_correlation, question
from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, pairs, variant
from etude.experiments.cells import Cell, model_folder, spread, trained
from etude.tasks.language.sums import Sums

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop

TASK, SOLVED, JUDGED = Sums(terms=(4, 5)), 2000, 2000
"""What is solved, and how many worked answers and judgements the start was shown; judgements are of other problems."""
WARM, RATE, STEPS, EVERY = 800, 1e-3, 100, 20
"""Supervised steps of 32 and their rate; steps of reinforcement, and those between two looks."""
CHANGES = {"optimizer.lr": 1e-4, "minibatches": 4}
PROBLEMS, SAMPLES, LOOKED = 200, 16, 100
"""Problems and solutions of each before and after; problems in between, with one solution."""
F1, ACCURACY, CHOSEN, VOTES = "judge/f1", "pass@1", f"self-prm@{SAMPLES}", f"maj@{SAMPLES}"
PRECISION = "judge/precision/terms{}"
Scores = dict[str, float]


@dataclass(frozen=True)
class Course:
    """What a run came to: its scores at the end, plain and with a solution in view, and those along it, from 0 on."""

    scores: Scores
    shown: Scores
    along: list[Scores]


def worked() -> list[Problem]:
    """What the start is shown: worked answers, and judgements of given solutions, right ones and wrong ones."""
    pool = TASK.problems("train")
    judgements = [
        replace(question(p, steps, "shown"), answer=str(label), info={"demonstration": judgement(p, steps, label)})
        for p in pool[SOLVED : SOLVED + JUDGED]
        for steps, label in [TASK.given_solutions(p)[_side(p)]]
    ]
    return [*pool[:SOLVED], *judgements]


def judgement(problem: Problem, given: Sequence[str], label: int) -> str:
    r"""A judge who works it out: its own totals, each beside the given one, as far as the first that differs.

    A small model that says the number at once does not learn to judge from so few.

    >>> judgement(Problem("a", "1+2+3=", info={"demonstration": "3,6"}), ["4", "7"], 0)
    '3:4\\boxed{0}'
    """
    own = TASK.solution_steps(TASK.demonstration(problem) or "")
    looked_at = len(own) if label == ACCEPTED else label + 1
    beside = ",".join(f"{a}:{b}" for a, b in zip(own[:looked_at], given))
    return rf"{beside}\boxed{{{label}}}"


def _side(problem: Problem) -> int:
    """0 for the right one of a problem's given solutions, 1 for the wrong one, by turns."""
    return int(problem.id.rpartition("/")[2]) % 2


def judged(
    loop: LanguageLoop, seed: int, how: Judging = "plain", problems: int = PROBLEMS, samples: int = SAMPLES
) -> Scores:
    """What a policy solves and what its word is worth, on the same problems for every policy."""
    found: Judged = evaluate_judging(loop.policy, TASK, "test", how, problems=problems, samples=samples, seed=seed)
    return {name: interval.value for name, interval in found.summary((1, samples)).items()}


def look(loop: LanguageLoop) -> Scores | None:
    """F1 and accuracy after every so many steps, on a fixed set."""
    if loop.finished % EVERY:
        return None
    found = judged(loop, START, problems=LOOKED, samples=1)
    return {name: found[name] for name in (F1, ACCURACY)}


def follow(cell: Cell) -> Course:
    """Train, looking on; judge at the end with the seed's own random numbers."""
    loop, metrics = trained(cell, look if cell.steps else None)
    along = [m["watched"] for m in metrics if isinstance(m.get("watched"), dict)]
    return Course(judged(loop, cell.seed), judged(loop, cell.seed, "self-ref", samples=1), along)


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """After against before, with the same random numbers."""
    method = variant("self-prm", CHANGES)
    warm = Cell("start", variant("sft", {"problems": 32, "optimizer.lr": RATE}), TASK, START, WARM, pool=worked())
    with model_folder(warm.folder()) as folder:
        loop, _ = trained(warm)
        loop.policy.save(Path(folder))
        first = judged(loop, START, problems=LOOKED, samples=1)
        before = spread(follow, [Cell("before", method, TASK, seed, 0, str(folder)) for seed in seeds])
        after = spread(follow, [Cell("after", method, TASK, seed, STEPS, str(folder)) for seed in seeds])
    arm, baseline = compared(before, after, first)
    return pairs(seeds, arm, baseline)


def compared(before: Sequence[Course], after: Sequence[Course], first: Scores) -> tuple[dict[str, Any], dict[str, Any]]:
    """By measure what both sides came to, seed by seed; `first` is what the looks begin with."""

    def of(courses: Sequence[Course], name: str) -> list[float]:
        return [c.scores.get(name, 0.0) for c in courses]  # there is no precision where nothing is accepted

    along = [
        lag_correlation([x[F1] for x in (first, *c.along)], [x[ACCURACY] for x in (first, *c.along)]) for c in after
    ]
    hard, easy = (of(after, PRECISION.format(n)) for n in (5, 4))
    arm = {
        "F1 of first wrong steps": of(after, F1),
        "chosen of 16, against votes": of(after, CHOSEN),
        "accuracy": of(after, ACCURACY),
        "accuracy gained": [a - b for a, b in zip(of(after, ACCURACY), of(before, ACCURACY), strict=True)],
        "F1 along accuracy": along,
        "precision, five numbers, against four": hard,
        "F1 with a solution in view, against none": [c.shown[F1] for c in after],
    }
    baseline = {
        "F1 of first wrong steps": of(before, F1),
        "chosen of 16, against votes": of(after, VOTES),
        "accuracy": of(before, ACCURACY),
        "accuracy gained": [0.0] * len(after),
        "F1 along accuracy": [0.0] * len(after),
        "precision, five numbers, against four": easy,
        "F1 with a solution in view, against none": of(after, F1),
    }
    return arm, baseline
