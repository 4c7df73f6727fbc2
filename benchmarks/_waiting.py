"""A task whose environments wait, as those do that ask a service; a worker process makes it by its name."""

from __future__ import annotations

import time
from typing import ClassVar

from etude.core.episodes import Problem, Segment
from etude.core.task import Environment, LanguageTask, StepResult


class Waiting(LanguageTask):
    """`max_turns` turns, each of which the environment answers after `seconds`.

    Args:
        workers: processes that step the environments; 0: this one.
    """

    id: ClassVar[str] = "waiting"
    max_tokens: ClassVar[int] = 4
    workers: int = 0  # type: ignore[misc]  # of each task, where others have one for all
    seconds: float = 0.05
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
        return [Segment("user", str(problem.prompt))]

    def step(self, segment: Segment) -> StepResult:
        self.turn += 1
        time.sleep(self.task.seconds)
        return StepResult(
            [Segment("user", f"{self.turn}>")], float(len(segment.text)), self.turn >= self.task.max_turns
        )
