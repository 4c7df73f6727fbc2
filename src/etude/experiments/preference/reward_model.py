"""The claim of the reward model: pairs that it has not seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from etude.core.streams import Stream
from etude.experiments.single_runs import claimed, result, seeds, trained

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

PAIRS = 200
"""New problems that a reward model is asked about."""


def experiment() -> dict[str, Any]:
    """Pair accuracy of trained reward models on problems that they have not seen, against guessing."""
    found = [pair_accuracy(trained(claimed("reward-model"), seed)) for seed in range(seeds("reward-model"))]
    return result("reward-model", found, [0.5] * len(found), "guessing")


def pair_accuracy(scorer: LanguagePolicy) -> float:
    """Share of unseen pairs of `preferences` of which the reward model scores the chosen answer higher."""
    from etude.core.slots import Context
    from etude.experience.data import Pairs
    from etude.rewards.model import values
    from etude.tasks import resolve_task

    task = resolve_task("preferences")
    problems = task.problems("test")[:PAIRS]
    scores = values(scorer, Pairs().collect(problems, Context(task, scorer, Stream(0))))
    return sum(chosen > rejected for chosen, rejected in zip(scores[::2], scores[1::2])) / len(problems)
