"""The episodes of `_talks.py` as a task of etude; a worker process makes it by its name."""

from __future__ import annotations

from typing import ClassVar

from _talks import TALKS

from etude.core.episodes import Problem, Segment
from etude.core.task import Environment, LanguageTask, StepResult


class Talking(LanguageTask):
    """What is said calls the tool, except in the last turn, which ends the episode.

    Args:
        talk: name of a row.
        workers: processes that step the environments; 0: this one.
        max_turns: those of the row.
    """

    id: ClassVar[str] = "talking"
    talk: str = "steps"
    workers: int = 0  # type: ignore[misc]  # of each task, where others have one for all
    max_turns: int = 12  # type: ignore[misc]

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{split}-{i}", text) for i, text in enumerate(TALKS[self.talk].openings())]

    def environment(self) -> Environment:
        return Tool(self)


class Tool:
    """Answers what was said."""

    def __init__(self, task: Talking) -> None:
        self.talk, self.turn = TALKS[task.talk], 0

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        self.turn = 0
        return [Segment("user", str(problem.prompt))]

    def step(self, segment: Segment) -> StepResult:
        self.turn += 1
        if self.turn == self.talk.turns:
            return StepResult([], 1.0, terminated=True)
        return StepResult([Segment("tool", self.talk.tool(segment.text))])
