"""A task whose environments wait, as those do that ask a service; a worker process makes it by its name."""

from __future__ import annotations

import random
import time
from typing import ClassVar

from etude.core.episodes import Problem, Segment
from etude.core.task import Environment, LanguageTask, StepResult


class Waiting(LanguageTask):
    """`max_turns` turns, each of which the environment answers after `seconds`.

    Args:
        workers: processes that step the environments; 0: this one.
        uneven: answers take `seconds` on average, exponentially distributed, as the episode's seed decides.
        by_arrival: episodes go on as their answers come.
    """

    id: ClassVar[str] = "waiting"
    max_tokens: ClassVar[int] = 4
    workers: int = 0  # type: ignore[misc]  # of each task, where others have one for all
    seconds: float = 0.05
    uneven: bool = False
    by_arrival: bool = False  # type: ignore[misc]
    max_turns: int = 3  # type: ignore[misc]

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{split}-{i}", f"{i}>") for i in range(8)]

    def environment(self) -> Environment:
        return Wait(self)


class Wait:
    """Says how often it was asked."""

    def __init__(self, task: Waiting) -> None:
        self.task, self.turn = task, 0

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        self.random = random.Random(seed)
        return [Segment("user", str(problem.prompt))]

    def step(self, segment: Segment) -> StepResult:
        self.turn += 1
        seconds = self.task.seconds
        time.sleep(self.random.expovariate(1 / seconds) if self.task.uneven else seconds)
        return StepResult(
            [Segment("user", f"{self.turn}>")], float(len(segment.text)), self.turn >= self.task.max_turns
        )
