"""Facts: a list of keys and values, and one question about it, whose answer may be given in figures or in words.

    prompt      a7=4;c3=19;b0=a7;...?c3>          look a value up
    completion  19                                 or nineteen
    prompt      ...?b0>                            the value is a key: look that up as well
    completion  a7,4
    prompt      ...?c3:A4B19C7>                    which of three options it is
    completion  19,B
    prompt      ...?a7+c3>                         the sum of two values
    completion  4,19,23

The answer is what follows the last comma. Worked answers may go on with `further` questions: 19?a7>4?b0>a7,4.
Difficulty is the length of the list: how many facts there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Interval, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.policies.byte_tokenizer import VERTICES
from etude.rewards.canonical import canonical_form
from etude.tasks.pool import Pool, reserved

Kind = Literal["lookup", "hops", "choice", "sum"]
KEYS = tuple(f"{letter}{digit}" for letter in VERTICES if letter.islower() and letter != "f" for digit in range(10))
"""Two tokens each in `tiny`, to which `f7` would be one."""
LARGEST = 19
"""Values are from 0 to this; a sum of two is at most twice as much."""
OPTIONS = "ABC"
WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS = {20: "twenty", 30: "thirty"}


class Facts(LanguageTask):
    """Questions about a list of facts; reward 1 if the answer is the right one, in figures or in words, else 0.

    Args:
        facts: how many facts there are; each problem draws one of these.
        kinds: what is asked; each problem draws one of these.
        words: chance that a worked answer gives a number in words.
        further: questions about the same list that a worked answer goes on with, and answers. A model that cannot look
            anything up yet learns it sooner from many answers to a list.
        level: what `Problem.level` says, how many 'facts' there are or which 'kind' of question it is.
        seed: which problems are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no list with its question.

    >>> problem = Problem("facts/1", "a7=4;c3=19;b0=a7?a7+c3>", "23")
    >>> [Facts().score(problem, text) for text in ("4,19,23", "4,19,twenty-three", "4,19,22")]
    [1.0, 1.0, 0.0]
    """

    id: ClassVar[str] = "facts"
    max_tokens: ClassVar[int] = 24

    facts: tuple[Annotated[int, Interval(ge=4, le=96)], ...] = (16, 32, 64)
    kinds: tuple[Kind, ...] = ("lookup", "hops", "choice", "sum")
    words: Probability = 0.3
    further: WholeNumber = 0
    level: Literal["facts", "kind"] = "facts"
    seed: WholeNumber = 0

    def check(self) -> None:
        for name in ("facts", "kinds"):
            if not getattr(self, name):
                raise ConfigError(f"Facts.{name} must have at least one entry, got none.")

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of facts", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 100_000 if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        return float(canonical_form(self.answer(completion)) == canonical_form(problem.answer))

    def answer(self, completion: str) -> str:
        """What follows the last comma, of what is said before another question."""
        return completion.partition("?")[0].rpartition(",")[2].strip()

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("facts", split, index).numpy
        count, kind = int(random.choice(self.facts)), str(random.choice(self.kinds))
        while True:
            values = _listed(count, random)
            question, steps, answer = _asked(kind, values, random)
            prompt = ";".join(f"{k}={v}" for k, v in values.items()) + f"?{question}>"
            if reserved(prompt) == (split == "test"):
                break
        worked = self._worked(steps, answer, random)
        for _ in range(self.further):
            another, steps, its = _asked(str(random.choice(self.kinds)), values, random)
            worked += f"?{another}>{self._worked(steps, its, random)}"
        level = kind if self.level == "kind" else f"facts{count}"
        return Problem(f"facts/{split}/{index}", prompt, answer, level, {"demonstration": worked, "kind": kind})

    def _worked(self, steps: list[str], answer: str, random: Generator) -> str:
        """The steps and the answer, which may be in words."""
        said = spelt(int(answer)) if answer.isdigit() and random.random() < self.words else answer
        return ",".join([*steps, said])


def _listed(count: int, random: Generator) -> dict[str, str]:
    """So many facts: keys with numbers, and for every fourth a key that has one."""
    keys = [KEYS[k] for k in random.permutation(len(KEYS))[:count]]
    values = {k: str(random.integers(0, LARGEST + 1)) for k in keys}
    numbers = count - count // 4
    for key in keys[numbers:]:
        values[key] = keys[random.integers(numbers)]
    return {k: values[k] for k in (keys[i] for i in random.permutation(count))}


def _asked(kind: str, values: dict[str, str], random: Generator) -> tuple[str, list[str], str]:
    """A question, the steps towards its answer, and the answer."""
    plain = [k for k, v in values.items() if v.isdigit()]
    first, second = (plain[i] for i in random.permutation(len(plain))[:2])
    if kind == "lookup":
        return first, [], values[first]
    if kind == "hops":
        pointers = [k for k, v in values.items() if not v.isdigit()]
        start = pointers[random.integers(len(pointers))]
        return start, [values[start]], values[values[start]]
    if kind == "sum":
        total = str(int(values[first]) + int(values[second]))
        return f"{first}+{second}", [values[first], values[second]], total
    others = [n for n in range(LARGEST + 1) if str(n) != values[first]]
    offered = [str(others[i]) for i in random.permutation(len(others))[: len(OPTIONS) - 1]]
    place = int(random.integers(len(OPTIONS)))
    offered.insert(place, values[first])
    shown = "".join(letter + value for letter, value in zip(OPTIONS, offered))
    return f"{first}:{shown}", [values[first]], OPTIONS[place]


def spelt(number: int) -> str:
    """A number from 0 to 39 in words.

    >>> spelt(7), spelt(20), spelt(38)
    ('seven', 'twenty', 'thirty-eight')
    """
    small = WORDS.split()
    if number < len(small):
        return small[number]
    return TENS[number // 10 * 10] + (f"-{small[number % 10]}" if number % 10 else "")


facts = Facts()
