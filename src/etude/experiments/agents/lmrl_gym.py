"""The claim of lmrl-gym: four ways to learn from recorded games, by normalised score, in mazes and a guessing game.

"maze" and "wordle" hold ILQL against cloning the best tenth; "filtered against all" that against cloning all. "less
what walls gain" is how much more ILQL gains on the best tenth in the maze that is seen, against how much in the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.evaluation.pairs import Pair
from etude.experiments.agents.recorded_games import MAZE, WALLS, WORDS, learned, recorded_games, scores
from etude.experiments.arms import pairs

ARMS = ("lmrl-gym", "filtered", "bc")


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """All scores by seed."""
    found = {}
    for name, task in (("maze", MAZE), ("walls", WALLS), ("wordle", WORDS)):
        with recorded_games(task) as games:
            found[name] = scores(games, learned(games, ARMS if name == "maze" else ARMS[:2], seeds))
    gains = {
        name: [a - b for a, b in zip(found[name]["lmrl-gym"], found[name]["filtered"])] for name in ("maze", "walls")
    }
    own = {
        "maze": found["maze"]["lmrl-gym"], "maze, filtered against all": found["maze"]["filtered"],
        "maze, less what walls gain": gains["maze"], "wordle": found["wordle"]["lmrl-gym"],
    }  # fmt: skip
    other = {
        "maze": found["maze"]["filtered"], "maze, filtered against all": found["maze"]["bc"],
        "maze, less what walls gain": gains["walls"], "wordle": found["wordle"]["filtered"],
    }  # fmt: skip
    return pairs(seeds, own, other)
