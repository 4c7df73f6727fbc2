"""Sorting: write the digits of a number in ascending order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from etude.core.episodes import Problem
from etude.core.errors import UnknownNameError
from etude.core.fields import Count
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool, reserved


class Sorting(LanguageTask):
    """Reward 1 if the completion is the prompt's digits in order, else 0."""

    id: ClassVar[str] = "sorting"
    max_tokens: ClassVar[int] = 16
    digits: Count = 5

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of sorting", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 10_000 if split == "train" else 500)

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(0).split("sorting", split, index).numpy
        while True:
            text = "".join(map(str, random.integers(10, size=self.digits)))
            if reserved(text) == (split == "test"):
                break
        answer = "".join(sorted(text))
        return Problem(f"sorting/{split}/{index}", f"sort {text}>", answer, info={"demonstration": answer})

    def score(self, problem: Problem, completion: str) -> float:
        return float(completion.strip() == problem.answer)


sorting = Sorting()
