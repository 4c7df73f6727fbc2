"""The claim of HGPO: sums of two numbers and of four, by a policy that knows how to think and how not to.

All arms begin from one policy, fine-tuned on worked answers in both modes, and have as many completions a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from etude.core.kinds import TokenMethod
from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, pairs, started, variant
from etude.experiments.cells import by_label, spread
from etude.experiments.watched import Job, Run, run, scores
from etude.tasks.language.hybrid_sums import HybridSums

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop

TASK, STEPS = HybridSums(), 40
WARM = 300
"""Supervised steps on worked answers before all arms, as before those of the bed `language/hybrid-sums`."""
CHANGES = {"problems": 32, "experience.size": 4}
PROBLEMS, SAMPLES, GAP = 200, 8, 0.2
"""Test problems, completions of each (and as many in each mode), and the gap of accuracies that counts as none."""
EASY, HARD = "terms2", "terms4"
HYBRID, THINKING = "hybrid accuracy", "thinking"
COMPARED = {
    HYBRID: (HYBRID, "hgpo", "grpo"),
    "accuracy per token": ("accuracy per token", "hgpo", "grpo"),
    "thinking by difficulty": ("thinking by difficulty", "hgpo", "grpo"),
    "accuracy": ("pass@1", "hgpo", "grpo"),
    "hybrid accuracy against right answers alone": (HYBRID, "hgpo", "rft"),
    "hybrid accuracy against the start": (HYBRID, "hgpo", "start"),
    "thinking with a wide margin": (THINKING, "wide", "hgpo"),
}
"""By measure: which score, of which arm, against which."""


def arms() -> dict[str, TokenMethod]:
    """HGPO, with a larger margin too, and what learns from the modes that the policy chooses by itself."""
    return {
        "hgpo": variant("hgpo", CHANGES),
        "wide": variant("hgpo", {**CHANGES, "advantages.margin": 0.6}),
        "grpo": variant("grpo", CHANGES),
        "rft": variant("rft", {**CHANGES, "minibatches": 1}),
    }


def figures(loop: LanguageLoop) -> Mapping[str, float]:
    """How the policy chooses between its modes, and what comes of it."""
    from etude.evaluation.modes import hybrid_accuracy

    found = hybrid_accuracy(loop.policy, TASK, problems=PROBLEMS, samples=SAMPLES, margin=GAP, seed=START)
    return {
        HYBRID: found.accuracy,
        "accuracy per token": found.per_token,
        THINKING: found.thinking(),
        "thinking by difficulty": found.thinking(HARD) - found.thinking(EASY),
    }


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Four arms from the same start, measured as that start is."""
    methods = arms()
    with started(TASK, steps=WARM) as first:
        jobs = [
            Job(name, method, TASK, seed, STEPS, first.folder, after=figures)
            for seed in seeds
            for name, method in methods.items()
        ]
        before = run(Job("start", methods["grpo"], TASK, START, 0, first.folder, after=figures))
        found = by_label([job.label for job in jobs], spread(run, jobs))
    found["start"] = [before] * len(seeds)
    arm = {measure: scores(found[ours], name) for measure, (name, ours, _) in COMPARED.items()}
    baseline = {measure: scores(found[other], name) for measure, (name, _, other) in COMPARED.items()}
    start = {measure: scores(found["start"], name) for measure, (name, _, other) in COMPARED.items() if other == "grpo"}
    budgets = {"completions": (_rows(found["hgpo"]), _rows(found["grpo"]))}
    return pairs(seeds, arm, baseline, start=start, budgets=budgets)


def _rows(found: Sequence[Run]) -> list[float]:
    """How many completions each run learned from."""
    return [float(sum(m["rows"] for m in r.metrics)) for r in found]
