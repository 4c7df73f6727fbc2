"""The claim of directional stimulus prompting: hints after reinforcement, after a few labels, and none.

A writer is taught once, and policies begin as it does. Each seed draws its labelled hints, on which a policy is taught
and then reinforced. Compared is the F1 of what is written behind its hints on the test.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from statistics import fmean

from etude.evaluation.pairs import Pair
from etude.experiments.arms import Trained, Training, pairs, run, started, train, variant
from etude.experiments.cells import model_folder, recorded
from etude.tasks.language.hinted_writing import HINTS, HintedWriting, hints_in

TASK, MODEL, UNLABELLED = HintedWriting(), "blank:2x64x4", 200_000
TAUGHT, LABELLED, STEPS, TESTED = 1500, 150, 120, 400
SHOWN, FEW = {"optimizer.lr": 2e-3}, {"problems": 32, "optimizer.lr": 1e-3}
CHANGES = {"problems": 32, "experience.size": 4, "optimizer.lr": 5e-4, "epochs": 2}


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """F1 and hints that are in the reference, on the test."""
    texts = TASK.replace(asks="texts", size=UNLABELLED)
    with started(texts, steps=TAUGHT, start=MODEL, changes=SHOWN) as writer, ExitStack() as kept:
        tasks = [TASK.replace(writer=writer.folder, seed=seed) for seed in seeds]
        method = variant("sft", FEW)
        few = [Training("few", method, t, t.seed, LABELLED, writer.folder, problems=TESTED) for t in tasks]
        few = [replace(job, keep=str(kept.enter_context(model_folder(job.folder())))) for job in few]
        found = run(few)
        arm = variant("directional-stimulus-prompting", CHANGES)
        found |= run(
            Training("rl", arm, t, t.seed, STEPS, str(job.keep), problems=TESTED) for t, job in zip(tasks, few)
        )
        before = float(train(replace(few[0], steps=0, keep=None)).rewards.mean())
        without = [recorded(f"unhinted {t.seed}", [repr(t)], partial(unhinted, t)) for t in tasks]
    worth = {name: [float(r.rewards.mean()) for r in runs] for name, runs in found.items()}
    hits = {name: [in_reference(t, r) for t, r in zip(tasks, runs)] for name, runs in found.items()}
    first, second, third = (
        "F1 against supervised hints",
        "F1 of supervised hints against none",
        "hints in reference",
    )
    return pairs(
        seeds, {first: worth["rl"], second: worth["few"], third: hits["rl"]},
        {first: worth["few"], second: without, third: hits["few"]}, start={first: [before] * len(seeds)},
    )  # fmt: skip


def unhinted(task: HintedWriting) -> float:
    """The mean F1 of what the writer writes without hints, on problems of the test."""
    pool = task.problems("test")
    problems = [pool[i] for i in range(TESTED)]
    task.expect([(problem, "") for problem in problems])
    return fmean(task.score(problem, "") for problem in problems)


def in_reference(task: HintedWriting, looked: Trained) -> float:
    """How many of four hints the reference has, as a share, on average over what a policy said on the test."""
    pool = task.problems("test")
    shares = [
        len({*hints_in(text)} & {*pool[i].info["reference"]}) / HINTS
        for i, texts in enumerate(looked.answers)
        for text in texts
    ]
    return fmean(shares)
