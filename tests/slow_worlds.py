"""Environments for worker processes: a task that such a process can make by its name, without loading torch."""

from __future__ import annotations

import os
import random
import time
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

from etude.core.episodes import Problem, Segment
from etude.core.errors import DataError
from etude.core.meters import spend
from etude.core.task import Environment, LanguageTask, StepResult


class Slow(LanguageTask):
    """Counts what it is told, for `turns` turns; an answer takes up to `seconds`, by chance that no seed decides.

    Args:
        workers: processes that step it.
        seconds: what an answer takes at most.
        fault: what goes wrong at the second turn of problem `at`.
        folder: where a fault that happens once leaves word.
        chance: whether it says a number that no seed decides.
        price: simulated seconds that each letter takes, and half of it in money.
    """

    id: ClassVar[str] = "slow"
    max_tokens: ClassVar[int] = 5
    workers: int = 0  # type: ignore[misc]  # of each task, where others have one for all
    turns: int = 3
    seconds: float = 0.0
    fault: str = ""
    at: int = 1
    folder: str = ""
    chance: bool = False
    price: float = 0.0
    max_turns: int = field(default=6, kw_only=True)  # type: ignore[misc]
    step_timeout: float = field(default=30.0, kw_only=True)  # type: ignore[misc]

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{split}-{i}", f"{i}:", info={"number": i, "place": (i, 0)}) for i in range(5)]

    def environment(self) -> Environment:
        return Counter(self)


class Arriving(Slow):
    """The same, whose episodes go on as their environments answer."""

    id: ClassVar[str] = "arriving"
    by_arrival: ClassVar[bool] = True


class Counter:
    """Says how many letters it was told so far, and a letter that the seed decides."""

    def __init__(self, task: Slow) -> None:
        self.task, self.turn, self.told = task, 0, 0

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        assert type(problem.info["place"]) is tuple
        self.number, self.random = problem.info["number"], random.Random(seed)
        return [Segment("user", str(problem.prompt))]

    def step(self, segment: Segment) -> Any:
        self.turn += 1
        self.told += len(segment.text)
        if self.task.price:
            spend(seconds=self.task.price * len(segment.text), cost=self.task.price / 2)
        time.sleep(random.SystemRandom().random() * self.task.seconds)
        if self.turn == 2 and self.number == self.task.at and self.task.fault:
            wrong = self._go_wrong(self.task.fault)
            if wrong is not None:
                return wrong
        letter = chr(97 + self.random.randrange(26))
        if self.task.chance:  # eight digits: two processes do not say the same by luck
            letter = f"{random.SystemRandom().randrange(10**8):08d}"
        over = self.turn >= self.task.turns + self.number % 2
        info = {"success": self.told % 2 == 0, "turns": self.turn, "process": os.getpid()}
        return StepResult([Segment("user", f"{self.told}{letter}\n")], self.told / 100, over, info=info)

    def _go_wrong(self, fault: str) -> Any:
        once = Path(self.task.folder) / "once"
        if fault == "raise":
            raise KeyError("gone")
        if fault == "hang":
            time.sleep(60)
        if fault == "stop":
            raise DataError("There is no such table.")
        if fault == "die once" and once.exists():
            return None
        if fault == "die once":
            once.touch()
        if fault in ("die", "die once"):
            os._exit(3)
        wrong: Any = {
            "unsendable": StepResult([], info={"thing": {"inside": [self]}}), "nan": StepResult([], float("nan")),
            "text": StepResult([Segment("user", 5)]), "nothing": None,  # type: ignore[arg-type]
        }  # fmt: skip
        return ("other",) if fault == "nothing" else wrong[fault]
