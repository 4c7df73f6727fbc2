"""The claim of model-task alignment: a slice of its study, the truth and two recipes without all of it, on both starts.

A share is what a recipe gained over what the truth gained with the same seed. Each pair holds the share from the start
that solves the task now and then against the share from the one that hardly ever does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from etude.core.edit import stack
from etude.core.kinds import TokenMethod
from etude.evaluation.pairs import Pair
from etude.experiments.arms import Trained, language, pairs, started, untrained, variant
from etude.tasks.language.compose import Compose

STEPS = 80
TASK, TAUGHT = Compose(levels=(3,)), Compose(levels=(1,) * 9 + (3,))
"""Three tables in a row; what the start that is not aligned was taught in large steps, mostly single ones."""
TEACHING, RATE = 30, 4e-3
CHANGES = {"problems": 16, "experience.size": 8, "optimizer.lr": 4e-4}


def recipes() -> dict[str, TokenMethod]:
    """The truth, the majority of answers, and the truth about wrong answers alone."""
    truth = variant("model-task-alignment", CHANGES)
    return {
        "truth": truth,
        "majority": variant(truth, {"rewards": "majority-reward"}),
        "negative": variant(stack(truth, "negative-only")),
    }


def gains(found: Mapping[str, Sequence[Trained]], start: float) -> dict[str, list[float]]:
    """What each recipe gained over the start, seed by seed."""
    return {name: [run.pass_at(1) - start for run in runs] for name, runs in found.items()}


def shares(gained: Mapping[str, Sequence[float]], recipe: str) -> list[float]:
    """Gains of a recipe over those of the truth, which count as a hundredth where they are less.

    >>> shares({"truth": [0.5, 0.0], "majority": [0.25, 0.01]}, "majority")
    [0.5, 1.0]
    """
    return [own / max(truth, 0.01) for own, truth in zip(gained[recipe], gained["truth"], strict=True)]


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Shares from the aligned start against those from the other, and what the truth taught from either."""
    methods = recipes()
    aligned = untrained(methods["truth"], TASK, samples=16)
    near = language(methods, TASK, seeds=seeds, steps=STEPS)
    with started(TAUGHT, steps=TEACHING, changes={"problems": 32, "optimizer.lr": RATE}) as first:
        away = untrained(methods["truth"], TASK, start=first.folder, samples=16)
        far = language(methods, TASK, seeds=seeds, steps=STEPS, start=first.folder)
    near_gains, far_gains = gains(near, aligned.pass_at(1)), gains(far, away.pass_at(1))
    count, labels = len(seeds), {"majority": "majority", "wrong answers alone": "negative"}
    arm = {f"share of {name}": shares(near_gains, key) for name, key in labels.items()}
    baseline = {f"share of {name}": shares(far_gains, key) for name, key in labels.items()}
    arm |= {
        "accuracy by the truth": [run.pass_at(1) for run in near["truth"]],
        "pass@16 of the start": [aligned.pass_at(16)] * count,
    }
    baseline |= {
        "accuracy by the truth": [run.pass_at(1) for run in far["truth"]],
        "pass@16 of the start": [away.pass_at(16)] * count,
    }
    budgets = {"completions": ([r.completions for r in near["majority"]], [r.completions for r in far["majority"]])}
    return pairs(seeds, arm, baseline, start={"accuracy by the truth": [away.pass_at(1)] * count}, budgets=budgets)
