"""Triangles: say three whole numbers that are the sides of a triangle with a given perimeter.

    prompt      tri 12=
    completion  3,4,5

Most perimeters have many triangles, and each is as right as the others: a policy can be right with one answer that it
always gives, or know them all. Two answers are the same if their sides are, in whatever order (`signature`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Annotated, ClassVar

from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Interval, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool, reserved

Perimeter = Annotated[int, Interval(ge=5, le=99)]


class Triangles(LanguageTask):
    """Reward 1 for three positive whole numbers with the perimeter asked for, each less than the other two, else 0.

    Args:
        smallest, largest: perimeters are drawn from one to the other.
        seed: which problems and worked answers are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no perimeter.

    >>> problem = Problem("triangles/1", "tri 12=", 12)
    >>> Triangles().score(problem, "3,4,5"), Triangles().score(problem, "1,5,6")
    (1.0, 0.0)
    """

    id: ClassVar[str] = "triangles"
    max_tokens: ClassVar[int] = 12

    smallest: Perimeter = 12
    largest: Perimeter = 60
    seed: WholeNumber = 0

    def check(self) -> None:
        if self.largest - self.smallest < 15:
            raise ConfigError(
                "Triangles.largest must be at least 15 above smallest, so that both splits have perimeters; got "
                f"{self.smallest} to {self.largest}."
            )

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of triangles", split, self.splits())
        perimeters = [p for p in range(self.smallest, self.largest + 1) if reserved(f"tri {p}=") == (split == "test")]
        if split == "test":  # every perimeter once
            return [self._problem(split, i, p) for i, p in enumerate(perimeters)]
        order = Stream(self.seed).split("triangles", split).numpy.integers(len(perimeters), size=10_000)
        return Pool(lambda i: self._problem(split, i, perimeters[order[i]]), len(order))

    def score(self, problem: Problem, completion: str) -> float:
        sides = read(completion)
        return float(sides is not None and sum(sides) == problem.answer and _closes(sides))

    def signature(self, episode: Episode) -> str:
        """The sides in order of size; what was said, if it is not three numbers."""
        sides = read(episode.completion)
        return episode.completion if sides is None else ",".join(map(str, sorted(sides)))

    def _problem(self, split: str, index: int, perimeter: int) -> Problem:
        random, known = Stream(self.seed).split("triangles", split, index).numpy, triangles_of(perimeter)
        sides = random.permutation(known[random.integers(len(known))]).tolist()
        shown = {"demonstration": ",".join(map(str, sides))}
        return Problem(f"triangles/{split}/{index}", f"tri {perimeter}=", perimeter, f"tens{perimeter // 10}", shown)


def read(completion: str) -> tuple[int, int, int] | None:
    """The three numbers of an answer, None if it is not three numbers.

    >>> read("3,4,5")
    (3, 4, 5)
    """
    match = re.fullmatch(r"(\d{1,3}),(\d{1,3}),(\d{1,3})", completion.strip(), re.ASCII)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


@cache
def triangles_of(perimeter: int) -> tuple[tuple[int, int, int], ...]:
    """Every triangle with whole sides a <= b <= c of this perimeter.

    >>> triangles_of(9)
    ((1, 4, 4), (2, 3, 4), (3, 3, 3))
    """
    pairs = ((a, b) for a in range(1, perimeter // 3 + 1) for b in range(a, (perimeter - a) // 2 + 1))
    return tuple((a, b, perimeter - a - b) for a, b in pairs if a + b > perimeter - a - b)


def _closes(sides: tuple[int, int, int]) -> bool:
    return min(sides) > 0 and 2 * max(sides) < sum(sides)


triangles = Triangles()
