"""The claim of DPO: pairs, against copying the chosen answers of the same pairs.

Answers are the starting model's own: of two samples for a problem, the one that goes right for longer is chosen. Many
of the chosen ones are wrong too, so that whoever copies them becomes no better than they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from etude.core.episodes import Episode, Problem
from etude.evaluation.pairs import Pair
from etude.experiments.arms import Trained, Training, pairs, run, started, untrained, variant
from etude.experiments.cells import spread
from etude.experiments.watched import ends
from etude.tasks.language.preferences import Preferences

TASK, WARM, STEPS = Preferences(levels=(3,)), 5, 40
POOL = 2000
"""Problems that two answers each are sampled of; those of which one answer is better become pairs."""
CHANGES = {"problems": 32, "optimizer.lr": 1e-4}


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Accuracy after as many steps on as many of the same problems: their pairs, or their chosen answers alone."""
    return duel(seeds, {"dpo": arm, "sft": baseline})


def duel(seeds: Sequence[int], own: Mapping[str, Mapping[str, Any] | None]) -> list[Pair]:
    """A method and its baseline, in that order, each with settings of its own, on the same problems."""
    arms = {name: variant(name, {**CHANGES, **(changed or {})}) for name, changed in own.items()}
    with started(TASK, steps=WARM) as first:
        pools = spread(compared, [(first.folder, seed) for seed in seeds])
        jobs = [
            Training(name, method, TASK, seed, STEPS, first.folder, pool)
            for seed, pool in zip(seeds, pools)
            for name, method in arms.items()
        ]
        found = run(jobs)
        before = untrained(next(reversed(arms.values())), TASK, start=first.folder).pass_at(1)
    (arm, baseline), rows = found.values(), [1 if name == "sft" else 2 for name in arms]
    budgets = {"problems": ([problems(r, rows[0]) for r in arm], [problems(r, rows[1]) for r in baseline])}
    figures = [
        {"accuracy": [r.pass_at(1) for r in runs], "pairs told apart": [told_apart(r) for r in runs]}
        for runs in (arm, baseline)
    ]
    return pairs(seeds, *figures, start={"accuracy": [before] * len(seeds)}, budgets=budgets)


def told_apart(found: Trained) -> float:
    """Share of its pairs, towards the end, that a run has the right way round; a half of one that sees none."""
    return (
        ends([m["preference_accuracy"] for m in found.metrics])[1]
        if "preference_accuracy" in found.metrics[-1]
        else 0.5
    )


def compared(job: tuple[str, int]) -> list[Problem]:
    """Pairs of answers of the policy in a folder: the better of two is 'chosen', and what there is to copy."""
    from etude.evaluation.long_to_short import sampled
    from etude.policies.language import LanguagePolicy

    folder, seed = job
    policy, train = LanguagePolicy.load(folder, device="cpu"), TASK.problems("train")
    problems = [train[i] for i in range(POOL)]
    made = []
    for problem, episodes in zip(problems, sampled(policy, TASK, problems, 2, seed)):
        worse, better = sorted(episodes, key=right_for)
        if right_for(worse) < right_for(better):
            said: dict[str, Any] = {"chosen": better.completion, "rejected": worse.completion}
            made.append(replace(problem, info={**problem.info, **said, "demonstration": better.completion}))
    return made


def right_for(episode: Episode) -> tuple[bool, int]:
    """Whether an answer is right, and how many of its first steps are."""
    steps, worked = episode.completion.split(">"), str(episode.problem.info["demonstration"]).split(">")
    wrong = (i for i, (said, right) in enumerate(zip(steps, worked)) if said != right)
    return bool(TASK.success(episode)), next(wrong, min(len(steps), len(worked)))


def problems(found: Trained, rows: int) -> float:
    """Problems that a run learned from, by the rows that it read."""
    return sum(m["rows"] for m in found.metrics) / rows
