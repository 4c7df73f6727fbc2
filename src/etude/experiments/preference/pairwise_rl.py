"""The claim of Pairwise-RL: PPO on a pair judge's chances against an anchor, against PPO on a scalar reward model.

Judge and reward model are trained on the same pairs, for as many steps, from the same start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from etude.core.episodes import Problem
from etude.evaluation.pairs import Pair
from etude.experiments.arms import Training, pairs, run, started, variant
from etude.methods.preference.pairwise_rl import Verdicts
from etude.tasks.language.digest import Digest

TASK, WARM, TAUGHT, STEPS, PAIRS = Digest(), 1000, 250, 60, 4000
CHANGES = {"problems": 64, "experience.size": 2, "optimizer.lr": 1e-3}


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Gold reward after as many steps on what was learned from the same pairs."""
    with started(TASK, steps=WARM, start="blank:2x64x4") as first, TemporaryDirectory() as folder:
        judge, scorer = (str(Path(folder) / name) for name in ("judge", "scorer"))
        taught = variant("sft", {"problems": 64, "optimizer.lr": 1e-3})
        scalar = variant("reward-model", {"problems": 64, "optimizer.lr": 1e-3})
        run([
            Training("judge", taught, TASK, 0, TAUGHT, first.folder, verdicts(), keep=judge, problems=1),
            Training("scorer", scalar, TASK, 0, TAUGHT, first.folder, keep=scorer, problems=1),
        ])  # fmt: skip
        arms = {
            "pairwise": variant(
                "pairwise-ppo", {**CHANGES, "rewards.against-anchor.judge.model": judge, **(arm or {})}
            ),
            "scalar": variant("ppo-rlhf", {**CHANGES, "rewards.reward-model.model": scorer, **(baseline or {})}),
        }
        found = run(Training(n, m, TASK, s, STEPS, first.folder) for s in seeds for n, m in arms.items())
        before = float(first.trained.rewards.mean())
    figures = [{"reward": [float(r.rewards.mean()) for r in found[name]]} for name in arms]
    budgets = {"completions": tuple([r.completions for r in found[name]] for name in arms)}
    return pairs(seeds, *figures, start={"reward": [before] * len(seeds)}, budgets=budgets)  # type: ignore[arg-type]


def verdicts() -> list[Problem]:
    """Pairs of the task in both orders, as prompts whose worked answer is the verdict."""
    pool = TASK.problems("train")
    asked = [(pool[i], row) for i in range(PAIRS) for row in Verdicts(called="verdicts").rows([pool[i]], TASK, 0)]
    return [
        Problem(f"verdict/{k}", row["prompt"], info={**problem.info, "demonstration": row["completion"]})
        for k, (problem, row) in enumerate(asked)
    ]
