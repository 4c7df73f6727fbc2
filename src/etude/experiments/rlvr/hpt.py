"""The claim of HPT: against SFT, GRPO and SFT then GRPO, every arm after as many settings of its own.

HPT has one coefficient of its own, the weight of what is imitated beside what is learned from rewards, and SFT then
GRPO the step at which it changes over. With the published coefficient of 1 alone HPT would be judged by that number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from etude.core.kinds import TokenMethod
from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, pairs, variant
from etude.experiments.watched import Job, ends, run, runs, scores
from etude.stages.phases import Phase
from etude.tasks.language.compose import Compose

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop

TASK, STEPS, PROBLEMS = Compose(levels=(3, 4)), 16, 16
TUNING = (0, 1)
"""Seeds that settings are chosen on."""
RATES = (2e-4, 4e-4)
RIVALS = ("sft-then-grpo", "grpo", "sft")


def arms() -> dict[str, dict[str, TokenMethod]]:
    """Four settings of every arm, the published one first: rates, by what the arm has of its own where it has that."""
    hpt = variant("hpt", {"minibatches": 1, "problems": PROBLEMS})
    grpo, sft = (variant(name, {"problems": PROBLEMS}) for name in ("grpo", "sft"))
    return {
        "hpt": {f"{c:g} {r:g}": variant(hpt, {"objective.coefficient": c, "optimizer.lr": r})
                for c in (1.0, 0.1) for r in RATES},
        "sft-then-grpo": {f"{end:g} {r:g}": variant(
            grpo.replace(stages=(Phase(like="sft", end=end), Phase())), {"optimizer.lr": r})
                for end in (0.5, 0.25) for r in RATES},
        "grpo": {f"{r:g}": variant(grpo, {"optimizer.lr": r}) for r in (*RATES, 1e-4, 8e-4)},
        "sft": {f"{r:g}": variant(sft, {"optimizer.lr": r}) for r in (*RATES, 1e-4, 8e-4)},
    }  # fmt: skip


def chosen(settings: Mapping[str, Mapping[str, TokenMethod]]) -> dict[str, str]:
    """The setting of each arm with the best accuracy on the tuning seeds."""
    tried = {f"{arm} {label}": method for arm, made in settings.items() for label, method in made.items()}
    found = runs(tried, TASK, seeds=TUNING, steps=STEPS)
    return {arm: max(made, key=lambda label: sum(scores(found[f"{arm} {label}"], "pass@1")))
            for arm, made in settings.items()}  # fmt: skip


def imitated(loop: LanguageLoop) -> float:
    """Share of the step's problems that were imitated."""
    filters = loop.method.filters
    return float(filters[0].state["imitated"]) if filters and filters[0].name == "performance-gate" else 0.0


def elsewhere(loop: LanguageLoop) -> Mapping[str, float]:
    """Accuracy on chains of pairs of functions that are never trained."""
    from etude.evaluation.language import evaluate_split

    looked = evaluate_split(loop.policy, TASK, "heldout", problems=400, samples=2, seed=START)
    return {"heldout": float(looked.correct.mean())}


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Accuracy of the settings that tuning chose, and of the published ones, on chains of three and four functions."""
    settings = arms()
    best = {arm: f"{arm} {label}" for arm, label in chosen(settings).items()}
    published = {arm: f"{arm} {next(iter(made))}" for arm, made in settings.items()}
    needed = sorted({*best.values(), *published.values()})
    methods = {f"{arm} {label}": method for arm, made in settings.items() for label, method in made.items()}
    found = runs({name: methods[name] for name in needed}, TASK, seeds=seeds, steps=STEPS, watch=imitated,
                 after=elsewhere)  # fmt: skip
    before = run(Job("start", methods[published["grpo"]], TASK, START, 0)).scores["pass@1"]
    sides: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
    for about, names in (("accuracy", best), ("as published, accuracy", published)):
        for rival in RIVALS:
            for side, arm in zip(sides, ("hpt", rival)):
                side[f"{about} against {rival}"] = scores(found[names[arm]], "pass@1")
    sides[0]["accuracy on other pairs"] = scores(found[best["hpt"]], "heldout")
    sides[1]["accuracy on other pairs"] = scores(found[best["grpo"]], "heldout")
    early, late = zip(*(ends(r.watched) for r in found[best["hpt"]]))
    sides[0]["imitated early"], sides[1]["imitated early"] = list(early), list(late)
    return pairs(seeds, *sides, start={f"accuracy against {rival}": [before] * len(seeds) for rival in RIVALS})
