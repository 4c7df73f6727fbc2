"""The claim of selective token generation: an adapter that shares the pen with a frozen model, and one that does not.

A model is taught texts once, and hints of 100 prompts of each seed's own, and is frozen. Beside it an adapter learns
from rewards on the same prompts, with a selector and without one, from the same weights by the same random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import fmean

from etude.core.draws import Draw
from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, Training, pairs, run, started, variant
from etude.experiments.cells import by_label, model_folder, spread, trained
from etude.policies.sampling import Sampling
from etude.tasks.language.hinted_writing import CLOSES, HintedWriting

TASK, MODEL, UNLABELLED, SHOTS = HintedWriting(), "blank:2x64x4", 200_000, 100
TAUGHT, LABELLED, STEPS, TESTED, LOOKED = 1500, 60, 100, 400, 50
SHOWN, FEW = {"optimizer.lr": 2e-3}, {"problems": 25, "optimizer.lr": 1e-3}
CHANGES = {"problems": 32, "experience.size": 2, "optimizer.lr": 1e-3}


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """F1 on the test, what is lost from training to it, and whose the words are."""
    texts = TASK.replace(asks="texts", size=UNLABELLED)
    with started(texts, steps=TAUGHT, start=MODEL, changes=SHOWN) as first, ExitStack() as kept:
        tasks = [TASK.replace(seed=seed, size=SHOTS) for seed in seeds]
        method = variant("sft", FEW)
        few = [Training("few", method, t, t.seed, LABELLED, first.folder, problems=TESTED) for t in tasks]
        few = [replace(job, keep=str(kept.enter_context(model_folder(job.folder())))) for job in few]
        before = [float(r.rewards.mean()) for r in run(few)["few"]]
        own = variant("selective-token-generation", CHANGES)
        jobs = [
            Training(label, own, t, t.seed, STEPS, f"{label}:{job.keep}", problems=TESTED)
            for t, job in zip(tasks, few)
            for label in ("selective", "adapter")
        ]
        found = by_label([job.label for job in jobs], spread(looked, jobs))
    arm, baseline = (
        dict(zip(("F1", "gap", "adapter at words"), zip(*found[label]))) for label in ("selective", "adapter")
    )
    baseline["adapter at words"] = tuple(figures[3] for figures in found["selective"])
    return pairs(seeds, arm, baseline, start={"F1": before})


def looked(job: Training) -> tuple[float, float, float, float]:
    """F1 on the test; that of training above it; the share of words that are the adapter's, and of signs."""
    from etude.evaluation.language import evaluate_split

    policy = trained(job)[0].policy
    test, train = (
        float(evaluate_split(policy, job.task, split, problems=count, samples=2, seed=START).rewards.mean())
        for split, count in (("test", job.problems), ("train", SHOTS))
    )
    pool = job.task.problems("test")
    prompts = [policy.encode(str(pool[i].prompt)) for i in range(LOOKED)]
    said = policy.generate(
        prompts, Sampling(max_tokens=job.task.max_tokens), [Draw.at(START, i) for i in range(LOOKED)]
    )
    sign = policy.encode(CLOSES)[0]
    words, signs = [1.0], [1.0]  # of an adapter that writes alone
    if policy.voices > 1:
        pairs_said = [(t, v) for c in said for t, v in zip(c.tokens, c.voices)]
        words = [float(v) for t, v in pairs_said if t != sign] or words
        signs = [float(v) for t, v in pairs_said if t == sign] or signs
    return test, train - test, fmean(words), fmean(signs)
