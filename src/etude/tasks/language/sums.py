"""Sums: add a row of small numbers, writing every running total.

    prompt      3+5+9+2=
    completion  8,17,19        the last number is the answer

Difficulty is the number of terms; problems of all the difficulties asked for are mixed, each labelled with its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, ClassVar

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Interval, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool, reserved

Terms = Annotated[int, Interval(ge=2, le=10)]


class Sums(LanguageTask):
    """Sums of several numbers; reward 1 if the last number of the completion is the sum, else 0.

    Args:
        terms: how many numbers are added; each problem draws one of these.
        largest: numbers are drawn from 1 to this.
        seed: which problems are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no sum. What can be shown of a problem (`etude evaluate --axes`): the order
    of the numbers, the additions that it takes, and one of them after the other.

    >>> problem = Problem("sums/1", "1+2+3=", "6")
    >>> Sums().score(problem, "3,6"), Sums().score(problem, "3,7")
    (1.0, 0.0)
    """

    id: ClassVar[str] = "sums"
    step_joint: ClassVar[str] = ","
    max_tokens: ClassVar[int] = 48

    terms: tuple[Terms, ...] = (3, 4, 5, 6)
    largest: Annotated[int, Interval(ge=9, le=99)] = 9
    seed: WholeNumber = 0

    def check(self) -> None:
        if not self.terms:
            raise ConfigError("Sums.terms must name at least one number of terms, got none.")

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of sums", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 100_000 if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        return float(self.answer(completion) == problem.answer)

    def answer(self, completion: str) -> str:
        """What follows the last comma."""
        return completion.rpartition(",")[2].strip()

    def solution_steps(self, completion: str) -> list[str]:
        """The running totals."""
        return completion.split(",")

    def given_solutions(self, problem: Problem) -> list[tuple[list[str], int]]:
        """The worked answer, and the same with one total off by 1 to 3, and with it those after it."""
        worked = self.demonstration(problem)
        if worked is None:
            return []
        totals = self.solution_steps(worked)
        random = Stream(self.seed).split("wrong", problem.id).numpy
        place, off = int(random.integers(len(totals))), int(random.choice([-3, -2, -1, 1, 2, 3]))
        wrong = [total if i < place else str(int(total) + off) for i, total in enumerate(totals)]
        return [(totals, -1), (wrong, place)]

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("sums", split, index).numpy
        count = int(random.choice(self.terms))
        while True:
            numbers = random.integers(1, self.largest + 1, size=count).tolist()
            prompt = "+".join(map(str, numbers)) + "="
            if reserved(prompt) == (split == "test"):
                break
        totals = list(accumulate(numbers))
        steps = [(f"{total}+{number}=", str(total + number)) for total, number in zip(totals, numbers[1:])]
        info = {
            "demonstration": ",".join(map(str, totals[1:])),
            "plan": " then ".join(f"+{number}" for number in numbers[1:]),
            "knowledge": [asked + answer for asked, answer in sorted(steps)],
            "subproblems": [{"prompt": asked, "answer": answer} for asked, answer in steps],
        }
        return Problem(f"sums/{split}/{index}", prompt, str(sum(numbers)), f"terms{count}", info)


sums = Sums()
