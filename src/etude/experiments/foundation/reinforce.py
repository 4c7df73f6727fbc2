"""The claim of REINFORCE: rewards alone teach, and a coin in their place does not."""

from __future__ import annotations

from collections.abc import Sequence

from etude.core.episodes import Episode
from etude.core.slots import Context, Reward
from etude.evaluation.pairs import Pair
from etude.experiments.arms import language, pairs, untrained, variant
from etude.tasks.language.compose import Compose

TASK, STEPS = Compose(levels=(2,)), 20


class Coin(Reward):
    """1 or 0 by chance, whatever was said."""

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [float(x) for x in context.stream.split("coin").numpy.integers(2, size=len(episodes))]


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Accuracy after REINFORCE, against the model that it began with, and against one that was paid by a coin."""
    method = variant("reinforce")
    arms = {"reinforce": method, "coin": method.replace(rewards=(Coin(),))}
    found = language(arms, TASK, seeds=seeds, steps=STEPS)
    after = [run.pass_at(1) for run in found["reinforce"]]
    before = [untrained(method, TASK).pass_at(1)] * len(seeds)
    return pairs(
        seeds, {"accuracy": after, "accuracy against a coin": after},
        {"accuracy": before, "accuracy against a coin": [run.pass_at(1) for run in found["coin"]]},
        start={"accuracy": before},
    )  # fmt: skip
