"""What g2rl claims: more problems solved in many attempts, by more different solutions, at no cost in one attempt."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, Trained, Training, pairs, train, untrained, variant
from etude.experiments.cells import by_label, spread
from etude.regularizers.entropy import EntropyBonus
from etude.tasks.language.countdown import Countdown

TASK = Countdown()
STEPS, SAMPLES = 32, 16
COMPARED = 100
"""Problems whose right answers' features are compared."""
SHARED = {"problems": 32, "optimizer.lr": 4e-4}


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Three arms from the same first policy: pass@1, pass@16, different solutions, how alike their gradients are."""
    bonus = (EntropyBonus(coefficient=0.01),)
    arms = {
        "g2rl": variant("g2rl", SHARED), "grpo": variant("grpo", SHARED),
        "entropy bonus": variant("grpo", SHARED, regularizers=bonus),
    }  # fmt: skip
    jobs = [Training(k, m, TASK, seed, STEPS, samples=SAMPLES) for seed in seeds for k, m in arms.items()]
    found = by_label([job.label for job in jobs], spread(_measured, jobs))
    first = _scores(untrained(arms["grpo"], TASK, samples=SAMPLES))
    columns = {label: {k: [run[k] for run in rows] for k in rows[0]} for label, rows in found.items()}
    mine, plain, other = columns["g2rl"], columns["grpo"], columns["entropy bonus"]
    rivals = {f"{k} against an entropy bonus": k for k in ("pass@16", "solutions")}
    measures = ("pass@16", "solutions", "pass@1", "cosine")
    return pairs(
        seeds, {**{k: mine[k] for k in measures}, **{name: mine[k] for name, k in rivals.items()}},
        {**{k: plain[k] for k in measures}, **{name: other[k] for name, k in rivals.items()}},
        start={k: [value] * len(seeds) for k, value in first.items()},
        budgets={"completions": (mine["completions"], plain["completions"])},
    )  # fmt: skip


def _measured(job: Training) -> dict[str, float]:
    """One run, and what its policy does on test problems."""
    with tempfile.TemporaryDirectory() as folder:
        done = train(replace(job, keep=folder))
        return {**_scores(done), "cosine": _cosine(folder), "completions": done.completions}


def _scores(run: Trained) -> dict[str, float]:
    """pass@1, pass@16, and the mean number of different right answers per problem."""
    solutions = [len({a for a, ok in zip(*row) if ok}) for row in zip(run.answers, run.correct)]
    return {"pass@1": run.pass_at(1), "pass@16": run.pass_at(SAMPLES), "solutions": float(np.mean(solutions))}


def _cosine(folder: str) -> float:
    """Mean |cosine| of the features of right answers to the same problem, two of each, over test problems."""
    import torch

    from etude.core.rows import to_batch
    from etude.evaluation.language import evaluate_split
    from etude.loops.whole_batch import evaluate_all
    from etude.methods.rlvr.g2rl import completion_features
    from etude.policies.language import LanguagePolicy

    policy = LanguagePolicy.load(folder, device="cpu")
    looked = evaluate_split(policy, TASK, "test", problems=COMPARED, samples=SAMPLES, seed=START)
    right = [e for row, ok in zip(looked.episodes, looked.correct) for e, good in zip(row, ok) if good]
    batch = to_batch(right, policy.tokenizer.pad_token_id, 1.0, policy.device)
    hidden = evaluate_all(policy, batch, {"hidden"}, 8192).hidden
    assert hidden is not None
    unit = completion_features(hidden, batch.tokens, batch.action_mask, policy.head())
    unit = unit / unit.norm(dim=1, keepdim=True)
    same = (batch.group[:, None] == batch.group).fill_diagonal_(False)
    return float((unit @ unit.T).abs()[same].mean()) if bool(same.any()) else float(torch.nan)
