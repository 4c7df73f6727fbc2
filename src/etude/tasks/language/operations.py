"""Operations: three digits, two operations, and what should come out; of all results only the last digit counts.

    prompt      734:0>          plain: any two of + - * that lead from 7, 3 and 4 to 0
    completion  7+3=0*4=0
    prompt      734:0>+*:       hinted: the same, behind two tokens that name operations
    completion  7+3=0*4=0
    prompt      734:0>?         hint: which operations they are
    completion  +*

There are eight recipes of two operations, and exactly one of them solves a problem. Whoever wrote the worked answers
calculates well, and takes any recipe where they slip.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Literal

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool, reserved

Form = Literal["plain", "hinted", "hint"]
RECIPES = ("++", "+-", "+*", "-+", "-*", "*+", "*-", "**")
LINE = re.compile(r"(\d)([-+*])(\d)=(\d)([-+*])(\d)=(\d)")


class Operations(LanguageTask):
    """Two operations to find; the reward is 1 for a line that is right in every step and comes to the goal, else 0.

    Args:
        forms: how problems of the split 'train' are asked; each draws one of these. Tests are plain.
        size: problems of the split 'train'; smaller pools are the first of larger ones.
        slips: share of the worked answers that follow any recipe; behind a hint they follow the hint.
        seed: which problems are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no digits with their goal. `info['hint']` names the right operations.

    >>> problem = Problem("1", "734:0>", info={"hint": "+*"})
    >>> [Operations().score(problem, text) for text in ("7+3=0*4=0", "7+3=0*4=8", "7-3=4*4=6", "3+7=0*4=0")]
    [1.0, 0.0, 0.0, 0.0]
    """

    id: ClassVar[str] = "operations"
    max_tokens: ClassVar[int] = 16
    shows_how: ClassVar[bool] = False

    forms: tuple[Form, ...] = ("plain",)
    size: Count = 4000
    slips: Probability = 0.5
    seed: WholeNumber = 0

    def check(self) -> None:
        if not self.forms:
            raise ConfigError("Operations.forms must have at least one entry, got none.")

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of operations", split, self.splits())
        return Pool(lambda i: self._problem(split, i), self.size if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        digits, _, goal = str(problem.prompt).partition(">")[0].partition(":")
        said = LINE.fullmatch(completion.strip())
        if said is None or said[1] + said[3] + said[6] != digits or said[7] != goal:
            return 0.0
        return float(line(digits, said[2] + said[5]) == said[0])

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("operations", split, index).numpy
        while True:
            digits, right, goal = _drawn(random)
            if goal and reserved(f"{digits}:{goal}") == (split == "test"):
                break
        form = self.forms[int(random.integers(len(self.forms)))] if split == "train" else "plain"
        said = right if random.random() >= self.slips else RECIPES[int(random.integers(len(RECIPES)))]
        prompt = f"{digits}:{goal}>" + {"plain": "", "hinted": f"{said}:", "hint": "?"}[form]
        shown = said if form == "hint" else line(digits, said)
        return Problem(f"operations/{split}/{index}", prompt, info={"hint": right, "demonstration": shown})


def line(digits: str, recipe: str) -> str:
    """Both steps, worked: last digits alone count.

    >>> line("734", "+*"), line("259", "-*")
    ('7+3=0*4=0', '2-5=7*9=3')
    """
    middle = _result(int(digits[0]), recipe[0], int(digits[1]))
    last = _result(middle, recipe[1], int(digits[2]))
    return f"{digits[0]}{recipe[0]}{digits[1]}={middle}{recipe[1]}{digits[2]}={last}"


def _result(a: int, operation: str, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b}[operation] % 10


def _drawn(random: Generator) -> tuple[str, str, str]:
    """Digits, the recipe, and what it alone comes to; '' where another comes to it as well."""
    digits = "".join(map(str, random.integers(10, size=3)))
    right = RECIPES[int(random.integers(len(RECIPES)))]
    ends = [line(digits, recipe)[-1] for recipe in RECIPES]
    goal = ends[RECIPES.index(right)]
    return digits, right, goal if ends.count(goal) == 1 else ""


operations = Operations()
