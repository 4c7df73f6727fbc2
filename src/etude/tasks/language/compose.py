"""Compose: apply functions with opaque names to a string, one after the other.

The testbed of "From f(x) and g(x) to f(g(x))" (arXiv:2509.25123), small enough for a laptop: ten functions on
strings of three to five letters. Whoever knows every function alone (level 1) has to learn to chain them.

    prompt      f6(f1(x)) cab>
    completion  f1:abc>f6:cab        one step per function, innermost first; the last string is the answer

The hundred ordered pairs of functions are divided in two: 'train' and 'test' chain one half (on different
strings), 'heldout' the other, so that 'heldout' measures whether chaining itself was learned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Interval, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool, reserved

ALPHABET = "abcdef"
LENGTHS = (3, 4, 5)
Level = Annotated[int, Interval(ge=1, le=8)]


def _shift(text: str, by: int) -> str:
    return "".join(ALPHABET[(ALPHABET.index(c) + by) % len(ALPHABET)] for c in text)


FUNCTIONS: dict[str, Callable[[str], str]] = {
    "f0": lambda s: s[::-1],  # reverse
    "f1": lambda s: s[1:] + s[:1],  # rotate left
    "f2": lambda s: _shift(s, 1),  # next letter, f -> a
    "f3": lambda s: "".join(sorted(s)),  # sort
    "f4": lambda s: s[-1] + s[1:-1] + s[0],  # swap ends
    "f5": lambda s: s.translate(str.maketrans(ALPHABET, ALPHABET[::-1])),  # mirror, a <-> f
    "f6": lambda s: s[-1:] + s[:-1],  # rotate right
    "f7": lambda s: s[1] + s[0] + s[2:],  # swap the first two
    "f8": lambda s: _shift(s, -1),  # previous letter, a -> f
    "f9": lambda s: s[:-1] + s[0],  # the first letter replaces the last
}
"""What each name means; every function keeps the length."""


def trains(inner: str, outer: str) -> bool:
    """Whether `outer(inner(x))` is chained in 'train'. Every function is inner in five such pairs and outer in five."""
    return (3 * int(inner[1]) + int(outer[1])) % 10 < 5


def functions_of(problem: Problem) -> tuple[str, ...]:
    """Names of the functions a problem uses, in the order in which they are applied.

    >>> functions_of(Problem("1", "f3(f1(x)) cab>"))
    ('f1', 'f3')
    """
    return tuple(reversed(re.findall(r"f\d", str(problem.prompt))))


def worked(functions: Sequence[str], text: str) -> str:
    """The completion that shows every step.

    >>> worked(["f1", "f3"], "cab")
    'f1:abc>f3:abc'
    """
    steps = []
    for name in functions:
        text = FUNCTIONS[name](text)
        steps.append(f"{name}:{text}")
    return ">".join(steps)


MISTAKES = ("stop early",) * 3 + ("any function",) * 2 + ("outside in",)


def careless(problem: Problem, random: Generator, care: float) -> str:
    """A worked chain that is as intended in a share `care` of all cases; a single function always is.

    Otherwise it stops early, goes from the outside in, or takes any function for one of them; where that would show
    a pair of functions that is held out, it stops early too. Every single step is done correctly.
    """
    functions, text = list(functions_of(problem)), problem.info["input"]
    if len(functions) == 1 or random.random() < care:
        return worked(functions, text)
    early = functions[: int(random.integers(1, len(functions)))]
    match str(random.choice(MISTAKES)):
        case "stop early":
            functions = early
        case "any function":
            functions[int(random.integers(len(functions)))] = str(random.choice(list(FUNCTIONS)))
        case _:
            functions.reverse()
    return worked(functions if all(map(trains, functions, functions[1:])) else early, text)


class Compose(LanguageTask):
    """Chained functions on short strings; reward 1 if the last string of the completion is the right one, else 0.

    Args:
        levels: how many functions 'train', 'test' and 'heldout' chain; each problem draws one of them. For more
            than two, every neighbouring pair belongs to the split's half.
        seed: which problems are drawn. The train/test divide is the same for every seed.
        care: share of the demonstrated chains that are as intended; the others are those of a `careless` worker, who
            does single functions right.

    Splits: 'train', 'test' (same pairs, other strings), 'heldout' (pairs that are never trained), 'atomic' (level 1),
    'level3', 'level4' (any functions). All but 'train' use the reserved strings.

    >>> problem = Problem("compose/1", "f6(f1(x)) cab>", "cab")
    >>> Compose().score(problem, "f1:abc>f6:cab"), Compose().score(problem, "f1:abc")
    (1.0, 0.0)
    """

    id: ClassVar[str] = "compose"
    max_tokens: ClassVar[int] = 32

    levels: tuple[Level, ...] = (2,)
    seed: WholeNumber = 0
    care: Probability = 1.0

    def check(self) -> None:
        if not self.levels:
            raise ConfigError("Compose.levels must name at least one level, got none.")

    def splits(self) -> tuple[str, ...]:
        return ("train", "test", "heldout", "atomic", "level3", "level4")

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of compose", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 100_000 if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        return float(self.answer(completion) == problem.answer)

    def demonstration(self, problem: Problem) -> str | None:
        if self.care == 1:
            return super().demonstration(problem)
        return careless(problem, Stream(self.seed).split("careless", problem.id).numpy, self.care)

    def answer(self, completion: str) -> str:
        """What follows the last colon."""
        return completion.rpartition(":")[2].strip()

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("compose", split, index).numpy
        levels = {"atomic": (1,), "level3": (3,), "level4": (4,)}.get(split, self.levels)
        functions = _chain(random, int(random.choice(levels)), split)
        text = drawn_text(random, test=split != "train")
        trace = worked(functions, text)
        prompt = "".join(f"{name}(" for name in reversed(functions)) + "x" + ")" * len(functions) + f" {text}>"
        info = {"functions": tuple(functions), "input": text, "demonstration": trace}
        return Problem(f"compose/{split}/{index}", prompt, self.answer(trace), f"level{len(functions)}", info)


def _chain(random: Generator, level: int, split: str) -> list[str]:
    """`level` functions, innermost first, whose neighbours are pairs of the split."""
    names = list(FUNCTIONS)
    chain = [names[random.integers(len(names))]]
    while len(chain) < level:
        allowed = [n for n in names if _allowed(split, chain[-1], n)]
        chain.append(allowed[random.integers(len(allowed))])
    return chain


def _allowed(split: str, inner: str, outer: str) -> bool:
    if split in ("train", "test"):
        return trains(inner, outer)
    return split != "heldout" or not trains(inner, outer)


def drawn_text(random: Generator, test: bool) -> str:
    """A string from the train or the test side of the divide, its length uniform."""
    length = random.choice(LENGTHS)
    while True:
        text = "".join(ALPHABET[k] for k in random.integers(len(ALPHABET), size=length))
        if reserved(text) == test:
            return text


compose = Compose()
