"""Poly-PPO's claim: how much of what is right is known in the end, at equal completions, on triangles."""

from __future__ import annotations

from collections.abc import Sequence

from etude.core.kinds import TokenMethod
from etude.evaluation.pairs import Pair
from etude.evaluation.pass_at_k import pass_at_k
from etude.experiments.arms import START, pairs, started, variant
from etude.experiments.cells import Cell, by_label, spread, trained
from etude.tasks.language.triangles import triangles

LESSONS, STEPS, RATE = 40, 25, 2e-4
PROBLEMS, SAMPLES = 40, 64
KS = (1, 8, 32)


def arms() -> dict[str, TokenMethod]:
    """272 completions a step in each arm; the language version has the prompt as a rollout state of its own."""
    rate = {"optimizer.lr": RATE}
    ours = variant("poly-ppo", {**rate, "experience.states": 1, "experience.prompt": True})
    return {"poly-ppo": ours, "ppo": variant("ppo", {**rate, "problems": 34})}


def train(job: Cell) -> dict[str, float]:
    """pass@k on perimeters that are trained on, and distinct right answers among the samples."""
    import numpy as np

    from etude.evaluation.language import evaluate_split

    loop, metrics = trained(job)
    looked = evaluate_split(loop.policy, triangles, "train", problems=PROBLEMS, samples=SAMPLES, seed=START)
    right = [
        {triangles.signature(e) for e, good in zip(row, correct) if good}
        for row, correct in zip(looked.episodes, looked.correct)
    ]
    found = {f"pass@{k}": float(pass_at_k(looked.correct, k).mean()) for k in KS}
    sampled = sum(line["rows"] for line in metrics)
    return {**found, "distinct right answers": float(np.mean([len(r) for r in right])), "completions": sampled}


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """pass@k and distinct right answers after as many completions."""
    with started(triangles, steps=LESSONS) as first:
        methods = arms()
        jobs = [Cell(k, m, triangles, seed, STEPS, first.folder) for seed in seeds for k, m in methods.items()]
        jobs.append(Cell("start", methods["ppo"], triangles, START, 0, first.folder))
        results = by_label([job.label for job in jobs], spread(train, jobs))
    (start,) = results["start"]
    names = [name for name in start if name != "completions"]
    ours, theirs = ({k: [r[k] for r in results[arm]] for k in (*names, "completions")} for arm in methods)
    return pairs(
        seeds, {k: ours[k] for k in names}, {k: theirs[k] for k in names},
        start={k: [start[k]] * len(seeds) for k in names},
        budgets={"completions": (ours["completions"], theirs["completions"])},
    )  # fmt: skip
