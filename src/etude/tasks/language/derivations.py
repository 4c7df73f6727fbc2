"""Derivations: texts in segments, and what can be asked about them without anybody having labelled an answer.

    text        7+5,*2,-3:7+5=12;12*2=24;24-3=21;       what is to be done, then a segment for each step

    next        7+5,*2,-3:7+5=12;?                      which segment follows
    middle      7+5,*2,-3:7+5=12;_24-3=21;?             which one is missing before the last
    completion  [12*2=24;]                              whatever is thought, then the segment between brackets
    answer      7+5,*2,-3:                              the last number
    completion  7+5=12;12*2=24;24-3=21

A segment of n >= 3 is asked for from the second to the last but one, in both ways alike: a middle one whose following
segment is hidden is a next one. Several segments may be said at once, if they are those that follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Interval, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.rewards.judged import between
from etude.rewards.judges import SegmentPrefix
from etude.tasks.pool import Pool, reserved

Kind = Literal["next", "middle", "answer"]
LARGEST = 99
"""Numbers on the way are from 0 to this."""


class Derivations(LanguageTask):
    """Segments of worked derivations, or what they come to; reward 1 if it is right, else 0.

    Args:
        asks: what is asked; each problem draws one of these.
        steps: how many steps a derivation has; each draws one of these.
        seed: which texts are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no text.

    >>> task = Derivations()
    >>> problem = Problem("d/1", "7+5,*2:", "24", "steps2")
    >>> task.score(problem, "7+5=12;12*2=24"), task.score(problem, "7+5=12")
    (1.0, 0.0)
    >>> problem = Problem("d/2", "7+5,*2,-3:?", None, "next", {"following": ("7+5=12;", "12*2=24;")})
    >>> [task.score(problem, text) for text in ("[7+5=12]", "well, [7+5=12;12*2=24;]", "[12*2=24;]", "7+5=12;")]
    [1.0, 1.0, 0.0, 0.0]
    """

    id: ClassVar[str] = "derivations"
    max_tokens: ClassVar[int] = 48

    asks: tuple[Kind, ...] = ("answer",)
    steps: tuple[Annotated[int, Interval(ge=2, le=8)], ...] = (3, 4)
    seed: WholeNumber = 0

    def check(self) -> None:
        for name in ("asks", "steps"):
            if not getattr(self, name):
                raise ConfigError(f"Derivations.{name} must have at least one entry, got none.")

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of derivations", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 100_000 if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        if "following" not in problem.info:
            return float(self.answer(completion) == problem.answer)
        return float(SegmentPrefix().begins(between(completion), problem.info["following"]))

    def answer(self, completion: str) -> str:
        """What follows the last sign of equality."""
        return completion.rpartition("=")[2].strip().rstrip(";")

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("derivations", split, index).numpy
        count, kind = int(random.choice(self.steps)), str(random.choice(self.asks))
        while True:
            segments = derivation(count, random)
            if reserved(segments[0]) == (split == "test"):
                break
        name = f"derivations/{split}/{index}"
        if kind == "answer":
            text = "".join(segments[1:]).rstrip(";")
            answer = self.answer(text)
            return Problem(name, segments[0], answer, f"steps{count}", {"demonstration": text})
        place = int(random.integers(1, len(segments) - 1))  # s_2 to s_{n-1}
        hidden = kind == "next"
        prompt = asked_for(segments, place, hidden)
        info = {"demonstration": f"[{segments[place]}]", "following": segments[place:]}
        return Problem(name, prompt, segments[place], kind, info)


def derivation(count: int, random: Generator) -> tuple[str, ...]:
    """A text in segments: what is to be done in `count` steps, and each of them."""
    value = int(random.integers(1, 10))
    done, segments = [], []
    for number in range(count):
        operator, operand = _step(value, random)
        after = {"+": value + operand, "-": value - operand, "*": value * operand}[operator]
        done.append(f"{value if not number else ''}{operator}{operand}")
        segments.append(f"{value}{operator}{operand}={after};")
        value = after
    return (",".join(done) + ":", *segments)


def _step(value: int, random: Generator) -> tuple[str, int]:
    """An operation that stays between 0 and LARGEST."""
    while True:
        operator, operand = str(random.choice([*"+-*"])), int(random.integers(2, 10))
        after = {"+": value + operand, "-": value - operand, "*": value * operand}[operator]
        if 0 < after <= LARGEST:
            return operator, operand


def asked_for(segments: Sequence[str], place: int, hidden: bool) -> str:
    """The prompt for segment `place`: all before it and, unless `hidden`, the one after it.

    >>> text = ("7+5,*2,-3:", "7+5=12;", "12*2=24;", "24-3=21;")
    >>> asked_for(text, 2, hidden=True), asked_for(text, 2, hidden=False)
    ('7+5,*2,-3:7+5=12;?', '7+5,*2,-3:7+5=12;_24-3=21;?')
    """
    after = "" if hidden else "_" + segments[place + 1]
    return "".join(segments[:place]) + after + "?"


derivations = Derivations()
