"""The claim of RewardAnything: a judge that reads the principle, against a reward model that does not see it, and
against itself where it is shown worked verdicts instead of GRPO.

All three learn from the same lists in as many steps; what is tested are lists under principles that nobody was shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from etude.core.episodes import Problem, Segment
from etude.core.streams import Stream
from etude.evaluation.pairs import Pair
from etude.experiments.arms import Training, pairs, run, started, variant
from etude.rewards.verdicts import candidates_of, pair_accuracy
from etude.tasks.language.principles import Principles

TASK, MODEL, WARM, STEPS, TESTED = Principles(), "blank:3x96x4", 600, 60, 400
RANKS = {"problems": 16, "experience.size": 8, "optimizer.lr": 1e-3}
READS = {"problems": 64, "optimizer.lr": 1e-3}


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Share of the pairs of unseen principles in the right order."""
    with started(TASK, steps=WARM, start=MODEL) as first, TemporaryDirectory() as folder:
        kept = {seed: str(Path(folder) / str(seed)) for seed in seeds}
        ranked, shown = variant("reward-anything", {**RANKS, **(arm or {})}), variant("sft", READS)
        scalar, drawn = variant("reward-model", {**READS, **(baseline or {})}), blind_pairs()
        found = run([
            *(Training("judge", ranked, TASK, s, STEPS, first.folder, problems=TESTED) for s in seeds),
            *(Training("sft", shown, TASK, s, STEPS, first.folder, problems=TESTED) for s in seeds),
            *(Training("scorer", scalar, TASK, s, WARM + STEPS, MODEL, drawn, kept[s], problems=1) for s in seeds),
        ])  # fmt: skip
        scored = [by_scorer(kept[seed]) for seed in seeds]
    right, sft = ([float(r.rewards.mean()) for r in found[name]] for name in ("judge", "sft"))
    return pairs(
        seeds,
        {"pairs": right, "pairs-beyond-sft": right, "tau": [2 * x - 1 for x in right]},
        {"pairs": scored, "pairs-beyond-sft": sft, "tau": [2 * x - 1 for x in scored]},
        start={"pairs": [0.5] * len(seeds)},  # what a scorer that says nothing yet is worth
        budgets={"updates": ([WARM + STEPS] * len(seeds), [WARM + STEPS] * len(seeds))},
    )


def words_alone(problem: Problem) -> str:
    """What is asked without the principle."""
    return candidates_of(problem).asked.partition("|")[2] + ">"


def blind_pairs() -> list[Problem]:
    """Of every list two answers that are not worth the same, beside what was asked, without the principle."""
    made, pool = [], TASK.problems("train")
    for i in range(len(pool)):
        _, answers, targets = candidates_of(pool[i])
        order = Stream(0).split("blind pairs", i).numpy.permutation(len(answers)).tolist()
        one, other = next((a, b) for a in order for b in order if targets[a] > targets[b])
        info = {"chosen": answers[one], "rejected": answers[other]}
        made.append(Problem(f"blind/{i}", words_alone(pool[i]), info=info))
    return made


def by_scorer(folder: str) -> float:
    """Share of the pairs of as many lists as the judges are tested on that a reward model orders rightly."""
    from etude.policies.language import LanguagePolicy
    from etude.policies.written import written
    from etude.rewards.model import values

    scorer, tested = LanguagePolicy.load(folder, device="cpu"), TASK.problems("test")
    right = []
    for i in range(TESTED):
        found = candidates_of(tested[i])
        asked = Problem(tested[i].id, words_alone(tested[i]))
        said = [written(asked, [Segment("user", str(asked.prompt)), Segment("assistant", text)], k, scorer)
                for k, text in enumerate(found.answers)]  # fmt: skip
        right.append(pair_accuracy(dict(zip(found.wanted, values(scorer, said))), found.wanted))
    return float(np.mean(right))
