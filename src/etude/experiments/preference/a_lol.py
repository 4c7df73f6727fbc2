"""The claim of A-LoL: answers weighed by their advantage, against the same answers weighed by their reward.

Half of the scored answers of `digest` have words in them that are not in the prompt. Both arms learn from the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.episodes import Problem
from etude.evaluation.pairs import Pair
from etude.experiments.arms import Trained, Training, pairs, run, started, untrained, variant
from etude.experiments.cells import spread
from etude.methods.preference.a_lol import Appraise, leftovers
from etude.tasks.language.digest import Digest

TASK, WARM, STEPS = Digest(corrupted=0.5), 400, 100
APPRAISE = Appraise(called="appraised", problems=3000, validation=400)
CHANGES = {"problems": 64, "optimizer.lr": 1e-3}
CLONING = {"curriculum": "uniform", "objective.factor": None, "advantages.baseline": False}


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Gold reward after as many steps on the same scored answers, by advantage or by reward."""
    own = {"a-lol": {**CHANGES, **(arm or {})}, "cloning": {**CHANGES, **CLONING, **(baseline or {})}}
    arms = {name: variant("a-lol-offline", changed) for name, changed in own.items()}
    with started(TASK, steps=WARM, start="blank:2x64x4") as first:
        pools = spread(appraised, [(first.folder, seed) for seed in seeds])
        jobs = [
            Training(name, method, TASK, seed, STEPS, first.folder, pool)
            for seed, pool in zip(seeds, pools)
            for name, method in arms.items()
        ]
        found = run(jobs)
        before = untrained(arms["cloning"], TASK, start=first.folder)
    figures = [
        {"reward": [float(r.rewards.mean()) for r in runs], "distinct words": [distinct(r) for r in runs]}
        for runs in (found["a-lol"], found["cloning"])
    ]
    for scores in figures:
        scores["kept"] = [kept(pool) for pool in pools]
    budgets = {"rows": ([r.completions for r in found["a-lol"]], [r.completions for r in found["cloning"]])}
    return pairs(seeds, *figures, start={"reward": [float(before.rewards.mean())] * len(seeds)}, budgets=budgets)


def appraised(job: tuple[str, int]) -> list[Problem]:
    """Problems of the task with scored answers, and what the policy in a folder is worth on each."""
    from etude.policies.language import LanguagePolicy

    folder, seed = job
    policy, pool = LanguagePolicy.load(folder, device="cpu"), TASK.problems("train")
    problems = [pool[i] for i in range(APPRAISE.problems)]
    rows = APPRAISE.rows_by(problems, TASK, policy, seed)
    behind = problems[APPRAISE.validation :]
    return [
        Problem(p.id, p.prompt, p.answer, p.level, {**p.info, "value": row["value"]}) for p, row in zip(behind, rows)
    ]


def kept(pool: Sequence[Problem]) -> float:
    """Share of the answers that have a positive advantage."""
    every = [a for problem in pool for a in leftovers(problem)]
    return sum(a > 0 for a in every) / len(every)


def distinct(found: Trained) -> float:
    """Share of the words of its answers that no answer to the same problem has said before (distinct-1)."""
    said = ["".join(answers) for answers in found.answers]
    return sum(len(set(text)) / max(1, len(text)) for text in said) / len(said)
