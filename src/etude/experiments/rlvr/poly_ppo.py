"""Poly-PPO's claim: how much of what is right is known in the end, at equal completions, on triangles."""

from __future__ import annotations

from typing import Any

from etude.core.kinds import TokenMethod
from etude.evaluation.pass_at_k import pass_at_k
from etude.experiments.arms import SEEDS, Question, findings, started, variant
from etude.experiments.cells import Cell, spread, trained
from etude.tasks.language.triangles import triangles

LESSONS, STEPS, COUNT = 150, 40, 3
PROBLEMS, SAMPLES = 40, 64
KS = (1, 4, 16, 32, 64)
RATE = 2e-4


def arms() -> dict[str, TokenMethod]:
    """272 completions a step in each arm; the language version has the prompt as a rollout state of its own."""
    rate = {"optimizer.lr": RATE}
    ours = variant("poly-ppo", {**rate, "experience.states": 1, "experience.prompt": True})
    return {"poly-ppo": ours, "ppo": variant("ppo", {**rate, "problems": 34})}


def train(job: Cell) -> dict[str, float]:
    """pass@k on perimeters that are trained on, and distinct right answers among the samples."""
    import numpy as np

    from etude.evaluation.language import evaluate_split

    loop, _ = trained(job)
    looked = evaluate_split(loop.policy, triangles, "train", problems=PROBLEMS, samples=SAMPLES, seed=SEEDS)
    right = [
        {triangles.signature(e) for e, good in zip(row, correct) if good}
        for row, correct in zip(looked.episodes, looked.correct)
    ]
    found = {f"pass@{k}": float(pass_at_k(looked.correct, k).mean()) for k in KS}
    return {**found, "distinct": float(np.mean([len(r) for r in right]))}


def experiment() -> dict[str, Any]:
    """pass@32, pass@1 and distinct right answers after as many completions."""
    with started(triangles, steps=LESSONS) as first:
        methods = arms()
        jobs = [
            Cell(label, m, triangles, SEEDS + k, STEPS, first.folder)
            for k in range(COUNT)
            for label, m in methods.items()
        ]
        jobs.append(Cell("start", methods["ppo"], triangles, SEEDS, 0, first.folder))
        results = spread(train, jobs)
    found: dict[str, dict[str, list[float]]] = {}
    for job, result in zip(jobs, results):
        for name, value in result.items():
            found.setdefault(name, {}).setdefault(job.label, []).append(value)
    questions = [Question("pass@32 against ppo", {arm: found["pass@32"][arm] for arm in methods}),
                 Question("pass@1 against 0.05 less than ppo's", _less(found["pass@1"]))]  # fmt: skip
    return findings(
        questions, task="triangles", steps=STEPS, seeds=COUNT, metric="pass@32",
        figures={name: {arm: sum(v) / len(v) for arm, v in of.items()} for name, of in found.items()},
    )  # fmt: skip


def _less(of: dict[str, list[float]]) -> dict[str, list[float]]:
    return {"poly-ppo": of["poly-ppo"], "ppo less 0.05": [x - 0.05 for x in of["ppo"]]}
