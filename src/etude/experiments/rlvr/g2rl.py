"""What g2rl claims: more problems solved in many attempts, by more different solutions, at no cost in one attempt."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from etude.core.kinds import TokenMethod
from etude.experiments.arms import SEEDS as FIRST
from etude.experiments.arms import Question, Trained, Training, findings, train, variant
from etude.experiments.cells import spread
from etude.regularizers.entropy import EntropyBonus
from etude.tasks.language.countdown import Countdown

TASK = Countdown()
STEPS, SEEDS, PROBLEMS, SAMPLES = 60, 3, 100, 16
SHARED = {"problems": 32, "optimizer.lr": 2e-4}
MARGIN = 0.02
"""What 'not lower' may be short of in accuracy."""
Measures = dict[str, float]


def experiment() -> dict[str, Any]:
    """Three arms from the same first policy: pass@1, pass@16, different solutions, how alike their gradients are."""
    arms = {
        "g2rl": variant("g2rl", SHARED),
        "grpo": variant("grpo", SHARED),
        "grpo + entropy": variant("grpo", SHARED, regularizers=(EntropyBonus(coefficient=0.01),)),
    }
    jobs = [(label, method, FIRST + k) for k in range(SEEDS) for label, method in arms.items()]
    found = list(zip(jobs, spread(_measured, jobs)))
    scores = {
        name: {label: [m[name] for (mine, *_), m in found if mine == label] for label in arms}
        for name in ("pass@1", "pass@16", "solutions", "cosine", "seconds")
    }
    least = [x - MARGIN for x in scores["pass@1"]["grpo"]]
    return findings(
        [
            *(Question(f"pass@16 against {k}", _pair(scores["pass@16"], k)) for k in ("grpo", "grpo + entropy")),
            *(Question(f"Different solutions in 16 samples against {k}", _pair(scores["solutions"], k))
              for k in ("grpo", "grpo + entropy")),
            Question("pass@1 at most the margin lower",
                     {"g2rl": scores["pass@1"]["g2rl"], f"grpo less {MARGIN}": least}),
            Question("Mean |cosine| of right answers' features", _pair(scores["cosine"], "grpo"), "lower"),
        ],
        task=TASK.id, steps=STEPS, seeds=SEEDS, metric="pass@16", scores=scores,
    )  # fmt: skip


def _pair(scores: dict[str, list[float]], other: str) -> dict[str, list[float]]:
    return {"g2rl": scores["g2rl"], other: scores[other]}


def _measured(job: tuple[str, TokenMethod, int]) -> Measures:
    """One run, and what its policy does on test problems."""
    label, method, seed = job
    with tempfile.TemporaryDirectory() as folder:
        work = Training(label, method, TASK, seed, STEPS, problems=PROBLEMS, samples=SAMPLES)
        done = train(replace(work, keep=folder))
        cosine = _cosine(Path(folder))
    return {
        "pass@1": done.pass_at(1), "pass@16": done.pass_at(16), "solutions": _solutions(done), "cosine": cosine,
        "seconds": float(np.mean([m["seconds/experience"] + m["seconds/update"] for m in done.metrics])),
    }  # fmt: skip


def _solutions(done: Trained) -> float:
    """Mean number of different right answers per problem."""
    return float(np.mean([len({a for a, ok in zip(*row) if ok}) for row in zip(done.answers, done.correct)]))


def _cosine(folder: Path) -> float:
    """Mean |cosine| of the features of right answers to the same problem, two of each, over test problems."""
    import torch

    from etude.core.rows import to_batch
    from etude.evaluation.language import evaluate_split
    from etude.loops.whole_batch import evaluate_all
    from etude.methods.rlvr.g2rl import completion_features
    from etude.policies.language import LanguagePolicy

    policy = LanguagePolicy.load(str(folder), device="cpu")
    looked = evaluate_split(policy, TASK, "test", problems=PROBLEMS, samples=SAMPLES, seed=FIRST)
    right = [e for row, ok in zip(looked.episodes, looked.correct) for e, good in zip(row, ok) if good]
    batch = to_batch(right, policy.tokenizer.pad_token_id, 1.0, policy.device)
    hidden = evaluate_all(policy, batch, {"hidden"}, 8192).hidden
    assert hidden is not None
    unit = completion_features(hidden, batch.tokens, batch.action_mask, policy.head())
    unit = unit / unit.norm(dim=1, keepdim=True)
    same = (batch.group[:, None] == batch.group).fill_diagonal_(False)
    return float((unit @ unit.T).abs()[same].mean()) if bool(same.any()) else float(torch.nan)
