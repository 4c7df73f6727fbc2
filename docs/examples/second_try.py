"""Second try: the problems of compose, whose answers a slow checker judges; who is wrong is asked once more."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from etude.core.episodes import Problem, Segment
from etude.core.fields import WholeNumber
from etude.core.task import Environment, LanguageTask, StepResult
from etude.tasks.language.compose import compose


class SecondTry(LanguageTask):
    """Reward 1 for the right answer, half of it for the second try.

    Args:
        workers: processes that step the environments, so many at once.
    """

    id: ClassVar[str] = "second-try"
    max_tokens: ClassVar[int] = compose.max_tokens
    max_turns: ClassVar[int] = 2
    step_timeout: ClassVar[float] = 5.0
    workers: WholeNumber = 8

    def problems(self, split: str) -> Sequence[Problem]:
        return compose.problems(split)

    def environment(self) -> Environment:
        return Checker()


class Checker:
    """One episode."""

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        self.problem, self.tries = problem, 0
        return [Segment("user", str(problem.prompt))]

    def step(self, segment: Segment) -> StepResult:
        time.sleep(0.05)  # a real one would run a program, ask a database, wait for a web page
        self.tries += 1
        right = compose.score(self.problem, segment.text) == 1.0
        again = Segment("user", f"\n{self.problem.prompt}")
        return StepResult([again], right / self.tries, terminated=right or self.tries == 2, info={"success": right})


second_try = SecondTry()
