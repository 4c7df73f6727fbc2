"""The claim of ilql: how well a maze is played by who was tilted by values of tokens, against cloning alone."""

from __future__ import annotations

from collections.abc import Sequence

from etude.evaluation.pairs import Pair
from etude.experiments.agents.recorded_games import MAZE, learned, recorded_games, scores
from etude.experiments.arms import pairs


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """The normalised score and the share of games that are won, by seed."""
    with recorded_games(MAZE) as games:
        found = learned(games, ("ilql", "bc"), seeds)
        score = scores(games, found)
    won = {name: [one.pass_at(1) for one in runs] for name, runs in found.items()}
    return pairs(
        seeds, {"score": score["ilql"], "won": won["ilql"]}, {"score": score["bc"], "won": won["bc"]}
    )  # fmt: skip
