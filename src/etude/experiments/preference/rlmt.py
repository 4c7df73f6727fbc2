"""The claim of RLMT: with a thought before the answer against without one, by each of three optimizers.

Both arms begin from fine-tuning on the same worked answers, with thoughts and without, and are paid by one reward model
that saw answers only. A completion with a thought is 20 tokens long and one without is 9, so that the arm without
thoughts samples 71 problems a step instead of 32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from etude.evaluation.pairs import Pair
from etude.experiments.arms import Trained, Training, pairs, run, started, variant
from etude.tasks.language.sorting import ENDS, Sorting

THINKS, PLAIN = Sorting(thinks=True), Sorting(thinks=False)
MODEL, WARM, SCORER, SCORED, STEPS = "blank:1x96x4", 600, "blank:2x96x4", 250, 100
ARMS = {"GRPO": "rlmt", "PPO": "rlmt-ppo", "DPO": "rlmt-dpo"}
PROBLEMS = {True: 32, False: 71}
"""A step's problems, with thoughts and without."""
CHANGES = {"experience.size": 8, "experience.temperature": 1.0, "optimizer.lr": 1e-3,
           "rewards.answer-score.sees.delimiter": ENDS}  # fmt: skip


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """What answers are worth after as many steps."""
    own = {True: arm or {}, False: baseline or {}}
    with (
        started(THINKS, steps=WARM, start=MODEL) as with_thoughts,
        started(PLAIN, steps=WARM, start=MODEL) as without,
        TemporaryDirectory() as folder,
    ):
        judged = variant("reward-model", {"problems": 64, "optimizer.lr": 1e-3})
        run([Training("scorer", judged, PLAIN, 0, SCORED, SCORER, keep=folder, problems=1)])
        scored = {**CHANGES, "rewards.answer-score.model": folder}
        jobs = [
            Training(
                f"{how} {thinks}", variant(name, {**scored, "problems": PROBLEMS[thinks], **own[thinks]}),
                THINKS if thinks else PLAIN, seed, STEPS, (with_thoughts if thinks else without).folder,
            )
            for seed in seeds
            for how, name in ARMS.items()
            for thinks in own
        ]  # fmt: skip
        found = run(jobs)
        before = float(without.trained.rewards.mean())
    arms = [figures({how: found[f"{how} {thinks}"] for how in ARMS}) for thinks in own]
    start = {f"worth by {how}": [before] * len(seeds) for how in ARMS}
    return pairs(seeds, *arms, start=start, budgets={"steps": ([STEPS] * len(seeds), [STEPS] * len(seeds))})


def figures(runs: Mapping[str, Sequence[Trained]]) -> dict[str, list[float]]:
    """What each optimizer's answers are worth, and what GRPO's took."""
    found = {f"worth by {how}": [float(r.rewards.mean()) for r in of] for how, of in runs.items()}
    found["in order, by GRPO"] = [r.pass_at(1) for r in runs["GRPO"]]
    found["tokens, by GRPO"] = [sum(m["sampled_tokens"] for m in r.metrics) for r in runs["GRPO"]]
    return found
