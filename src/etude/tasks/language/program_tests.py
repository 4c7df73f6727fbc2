"""Program tests: write a short Python function from a list of steps; unit tests in a sandbox say whether it is right.

    prompt      sort,tail,sum>
    completion  def f(x):
                 x=sorted(x)
                 x=x[1:]
                 return sum(x)

A function takes a list of whole numbers. The steps change the list one after the other; the last says what is returned.
Nothing is compared with the text of an answer: the program runs on lists that the prompt does not show, where nothing
but what it returns can be reached (`docs/code-safely.md`), so any program that does the same is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count, Interval, Positive, WholeNumber
from etude.core.streams import Stream
from etude.core.task import Environment, LanguageTask
from etude.rewards.testing import Tested, code_of, passes
from etude.runtime.sandbox.pool import refusal
from etude.tasks.pool import Pool, reserved

STEPS: dict[str, tuple[str, Callable[[list[int]], list[int]]]] = {
    "sort": ("sorted(x)", sorted),
    "flip": ("x[::-1]", lambda x: x[::-1]),
    "tail": ("x[1:]", lambda x: x[1:]),
    "inc": ("[i+1 for i in x]", lambda x: [i + 1 for i in x]),
    "dbl": ("[2*i for i in x]", lambda x: [2 * i for i in x]),
    "odd": ("[i for i in x if i%2]", lambda x: [i for i in x if i % 2]),
}
"""What each step means: in Python, and for those who make the tests."""
ENDS: dict[str, tuple[str, Callable[[list[int]], object]]] = {
    "list": ("x", list),
    "sum": ("sum(x)", sum),
    "len": ("len(x)", len),
    "low": ("min(x+[9])", lambda x: min([*x, 9])),
}
"""The same of what is returned."""
SHORTEST, LONGEST, LARGEST = 4, 6, 9
"""Length of the lists, and the largest number in them."""


class ProgramTests(LanguageTask):
    """Short functions on lists; reward 1 for a program that passes every test of its problem, else 0.

    Args:
        steps: how many steps a function has before its end; each problem draws one of these.
        tests: how many lists a program is tried on.
        seconds: that a program may take.
        seed: which lists are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no function. Code is not run where there is no sandbox: a ConfigError.

    >>> ProgramTests(steps=(2,)).problems("train")[0].prompt
    'flip,sort,sum>'
    """

    id: ClassVar[str] = "program-tests"
    max_tokens: ClassVar[int] = 112

    steps: tuple[Annotated[int, Interval(ge=1, le=3)], ...] = (1, 2, 3)
    tests: Count = 3
    seconds: Positive = 2.0
    seed: WholeNumber = 0

    def check(self) -> None:
        if not self.steps:
            raise ConfigError("ProgramTests.steps must say at least one count of steps, got none.")

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of program-tests", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 20_000 if split == "train" else 1_000)

    def needs_reward(self) -> str | None:
        """Why programs cannot be tried here; None if they can."""
        return refusal()

    def environment(self) -> Environment:
        return Tested(self, self.seconds)

    def score(self, problem: Problem, completion: str) -> float:
        return passes(completion, problem, self.seconds)

    def answer(self, completion: str) -> str:
        return code_of(completion).strip()

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("program-tests", split, index).numpy
        count = int(random.choice(self.steps))
        while True:
            chosen = [str(name) for name in random.choice(list(STEPS), size=count)]
            end = str(random.choice(list(ENDS)))
            if reserved(f"program-tests {','.join([*chosen, end])}") == (split == "test"):
                break
        tests = [_test(chosen, end, random) for _ in range(self.tests)]
        info = {"tests": tests, "demonstration": written(chosen, end)}
        prompt = ",".join([*chosen, end]) + ">"
        return Problem(f"program-tests/{split}/{index}", prompt, written(chosen, end), f"steps{count}", info)


def written(steps: Sequence[str], end: str) -> str:
    """The function, as a worked answer writes it.

    >>> print(written(["sort", "tail"], "sum"))
    def f(x):
     x=sorted(x)
     x=x[1:]
     return sum(x)
    """
    return "\n".join(["def f(x):", *(f" x={STEPS[name][0]}" for name in steps), f" return {ENDS[end][0]}"])


def _test(steps: Sequence[str], end: str, random: Generator) -> dict[str, object]:
    """A list, and what the function makes of it."""
    given = random.integers(LARGEST + 1, size=int(random.integers(SHORTEST, LONGEST + 1))).tolist()
    made = given
    for name in steps:
        made = STEPS[name][1](made)
    return {"call": "f", "arguments": [given], "value": ENDS[end][1](made)}


program_tests = ProgramTests()
