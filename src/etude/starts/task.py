"""My task: write the two numbers of a pair the other way round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from etude.core.episodes import Problem
from etude.core.errors import UnknownNameError
from etude.core.fields import Interval
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool, reserved


class MyTask(LanguageTask):
    """Reward 1 if the completion is the pair the other way round, else 0.

    Args:
        largest: numbers are drawn from 0 to this one.
    """

    id: ClassVar[str] = "my-task"
    max_tokens: ClassVar[int] = 8  # of a completion; what is longer is cut

    # What can be set, with its range: --set task.largest=20
    largest: Annotated[int, Interval(ge=9, le=99)] = 99

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():  # 'train' and 'test'
            raise UnknownNameError("split of my-task", split, self.splits())
        # problem i is made when it is asked for, so that many cost nothing
        return Pool(lambda i: self._problem(split, i), 10_000 if split == "train" else 400)

    def _problem(self, split: str, index: int) -> Problem:
        # an address instead of a seed: problem 7 is the same one on every machine
        random = Stream(0).split("my-task", split, index).numpy
        while True:
            a, b = map(int, random.integers(self.largest + 1, size=2))
            # a fifth of all inputs is kept for testing, by their text, so that the splits share none
            if reserved(f"{a},{b}") == (split == "test"):
                break
        answer = f"{b},{a}"
        # `demonstration` is optional: what supervised methods learn from
        return Problem(f"my-task/{split}/{index}", f"{a},{b}>", answer, info={"demonstration": answer})

    def score(self, problem: Problem, completion: str) -> float:
        # for several turns, tools or a world that answers back, override `environment` instead
        return float(completion.strip() == problem.answer)


my_task = MyTask()
