"""The claim of mc-returns: how well a maze is played by who was tilted by returns, against cloning the best tenth."""

from __future__ import annotations

from collections.abc import Sequence

from etude.evaluation.pairs import Pair
from etude.experiments.agents.recorded_games import MAZE, learned, recorded_games, scores
from etude.experiments.arms import pairs


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """The normalised score by seed."""
    with recorded_games(MAZE) as games:
        found = scores(games, learned(games, ("mc-returns", "filtered"), seeds))
    return pairs(seeds, {"score": found["mc-returns"]}, {"score": found["filtered"]})
