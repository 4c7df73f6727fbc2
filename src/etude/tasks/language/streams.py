"""Streams: text in which numbers are computed and hardly ever shown, and what comes next in it.

    text        a=3;b=a+4;c=b*2;c?4;
    context     a=3;b=a+4;c=b*2;c?          next: 4
    thought     (3,7,4)                     the values, in order, between context and next

Numbers are modulo 10. What comes next after a question is hard to say at once and easy with a thought.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Interval, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool, reserved

if TYPE_CHECKING:
    from numpy.random import Generator

NAMES = "abcdefghij"
TIMES = (3, 7)
"""What is multiplied by: no two numbers become one modulo 10, so all answers are equally frequent."""
Lines = Annotated[int, Interval(ge=2, le=len(NAMES))]


class Streams(LanguageTask):
    """What comes next in a text of assignments; reward 1 if a completion says it, after a thought or without, else 0.

    Args:
        lines: how many variables there are; each text draws one of these.
        where: 'answers' asks for what follows the question at a text's end, 'anywhere' for what follows a beginning of
            it, drawn with equal probability.
        scratch: share of the worked completions that have a thought, where a question is answered.
        seed: which texts are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no text.

    >>> problem = Streams(lines=(3,)).problems("train")[0]
    >>> problem.prompt, problem.answer, problem.info["values"]
    ('a=9;b=a-2;c=b*3;c?', '1', '9,7,1')
    >>> Streams().score(problem, "(9,7,1)1;"), Streams().score(problem, "1;"), Streams().score(problem, "(9,7,1)")
    (1.0, 1.0, 0.0)
    """

    id: ClassVar[str] = "streams"
    max_tokens: ClassVar[int] = 32
    stop: ClassVar[tuple[str, ...]] = (";",)
    thought: ClassVar[tuple[str, str]] = ("(", ")")

    lines: tuple[Lines, ...] = (3, 4)
    where: Literal["answers", "anywhere"] = "answers"
    scratch: Probability = 0.1
    seed: WholeNumber = 0

    def check(self) -> None:
        if not self.lines:
            raise ConfigError("Streams.lines must name at least one number of variables, got none.")

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of streams", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 100_000 if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        return float(self.answer(completion) == problem.answer)

    def answer(self, completion: str) -> str:
        """The first character after the last thought, or of all that is said."""
        return completion.rpartition(self.thought[1])[2][:1]

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("streams", split, index).numpy
        count = int(random.choice(self.lines))
        while True:
            context, values = stream(count, random)
            if reserved(context) == (split == "test"):
                break
        text = f"{context}{values[-1]};"
        cut = int(random.integers(1, len(text))) if self.where == "anywhere" else len(context)
        shown = ",".join(map(str, values))
        opens, closes = self.thought
        thought = f"{opens}{shown}{closes}" if cut == len(context) and random.random() < self.scratch else ""
        info = {"values": shown, "demonstration": thought + text[cut:]}
        return Problem(f"streams/{split}/{index}", text[:cut], text[cut], f"lines{count}", info)


def stream(count: int, random: Generator) -> tuple[str, list[int]]:
    """A text of `count` assignments that ends with a question about the last, and the values of all of them.

    Each variable is made of the one before it, so the last value rests on all of them.
    """
    values, said = [int(random.integers(10))], []
    said.append(f"{NAMES[0]}={values[0]};")
    for before, name in pairwise(NAMES[:count]):
        sign = str(random.choice(list("+-*")))
        other = int(random.choice(TIMES) if sign == "*" else random.integers(1, 10))
        values.append({"+": values[-1] + other, "-": values[-1] - other, "*": values[-1] * other}[sign] % 10)
        said.append(f"{name}={before}{sign}{other};")
    return f"{''.join(said)}{NAMES[count - 1]}?", values


streams = Streams()
